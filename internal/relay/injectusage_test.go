package relay

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/engines"
)

func TestR2_AskForFinalUsage(t *testing.T) {
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
		changed, continuous := askForUsage([]byte(body), engines.UsageFinal, strings.Contains(body, `"include_usage":true`))
		got := string(changed)
		if got != want || continuous || json.Valid([]byte(body)) && !json.Valid([]byte(got)) {
			t.Errorf("%s became %s, want %s", body, got, want)
		}
	}
}

func TestR2_AskForContinuousUsage(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"m"}`: `{"stream_options":{"include_usage":true,"continuous_usage_stats":true},"model":"m"}`,
		`{"stream_options":{"include_usage":true}}`:                                `{"stream_options":{"continuous_usage_stats":true,"include_usage":true}}`,
		`{"stream_options":{"include_usage":false}}`:                               `{"stream_options":{"include_usage":false}}`,
		`{"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`:  `{"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`,
		`{"stream_options":{"include_usage":true,"continuous_usage_stats":false}}`: `{"stream_options":{"include_usage":true,"continuous_usage_stats":false}}`,
	} {
		got, continuous := askForUsage([]byte(body), engines.UsageContinuous, strings.Contains(body, `"include_usage":true`))
		if string(got) != want || continuous != (body != want) {
			t.Errorf("%s became %s, %v, want %s", body, got, continuous, want)
		}
	}
}

// A stream that ends early has the usage that the engine has counted, and its client sees no usage
// that it has not asked for. Without the engine's count the usage is marked as an estimate.
func TestR2_UsageOfAnEarlyEnd(t *testing.T) {
	for reports, counted := range map[engines.UsageReports]bool{engines.UsageContinuous: true, engines.UsageFinal: false, engines.UsageUnknown: false} {
		h := newHarness(t, options{policy: Policy{Usage: reports}})
		_, text := h.sendAndRead(helloWith(`"timeout_ms":400`), "x-sim-fault: stall=8:1m")
		last := text[strings.LastIndex(text, `"choices"`):]
		if n := strings.Count(text, `"usage":{`); n != 1 || !strings.Contains(last, `"usage":{`) || strings.Contains(last, `"estimated":true`) == counted {
			t.Errorf("%q: %d usages: %s", reports, n, text)
		}
		if u := h.result(1).Usage; u.Known != counted || u.Completion < 5 || counted && u.Prompt == 0 {
			t.Errorf("%q: %+v", reports, u)
		}
		h.waitIdle()
	}
}
