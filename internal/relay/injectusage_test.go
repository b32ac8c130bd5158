package relay

import (
	"encoding/json"
	"testing"
)

func TestInjectUsage(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"m"}`:                                                  `{"stream_options":{"include_usage":true},"model":"m"}`,
		` {  "model" : "m" , "stream":true } `:                           ` {  "stream_options":{"include_usage":true},"model" : "m" , "stream":true } `,
		`{"model":"m","stream_options":{}}`:                              `{"model":"m","stream_options":{"include_usage":true}}`,
		`{"stream_options":{"x":1},"model":"m"}`:                         `{"stream_options":{"include_usage":true,"x":1},"model":"m"}`,
		`{"model":"m","stream_options":{"include_usage":false}}`:         `{"model":"m","stream_options":{"include_usage":false}}`,
		`{"model":"m","stream_options":null}`:                            `{"model":"m","stream_options":null}`,
		`{"messages":[{"content":"\"stream_options\":{}"}],"model":"m"}`: `{"stream_options":{"include_usage":true},"messages":[{"content":"\"stream_options\":{}"}],"model":"m"}`,
		`not JSON`: `not JSON`,
	} {
		got := string(injectUsage([]byte(body)))
		if got != want || json.Valid([]byte(body)) && !json.Valid([]byte(got)) {
			t.Errorf("%s became %s, want %s", body, got, want)
		}
	}
}
