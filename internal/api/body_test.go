package api

import (
	"bytes"
	"encoding/json"
	"math/big"
	"testing"
)

// FuzzBody compares the reader of bodies with encoding/json. Every body that the reader accepts is
// a JSON object whose fields have the values that it read, each field once.
func FuzzBody(f *testing.F) {
	for _, body := range []string{
		`{"name":"n","count":5}`, ` {"count":5.00 , "name":null}`, `{"name":"\u0061\ud83d\ude00"}`, `{"count":-0}`, `{"count":1e2}`, `{}`,
		`{"name":"n","name":"m"}`, `{"other":[{}]}`, `{"count":1.5}`, "{\"name\":\"\xff\"}", `{"name":"\ud83d"}`, `{"a":1}}`, `[]`, ``, `{"count":`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var text string
		var number *int64
		fault := parseObject(body, map[string]fieldParser{"name": name(&text), "count": count(&number, 1000)})
		if fault != nil {
			if fault.HTTPStatus() != 400 || fault.Message == "" || !json.Valid(fault.Body()) {
				t.Fatalf("%q: %+v", body, fault)
			}
			return
		}
		var want map[string]any
		d := json.NewDecoder(bytes.NewReader(body))
		d.UseNumber()
		if err := d.Decode(&want); err != nil || want == nil {
			t.Fatalf("%q: taken, but %v", body, err)
		}
		if s, _ := want["name"].(string); s != text {
			t.Fatalf("%q: name %q", body, text)
		}
		if (want["count"] != nil) != (number != nil) {
			t.Fatalf("%q: count %v", body, number)
		}
		if n, ok := want["count"].(json.Number); ok {
			exact, _ := new(big.Rat).SetString(n.String())
			if exact.Cmp(big.NewRat(*number, 1)) != 0 || *number < 0 || *number > 1000 {
				t.Fatalf("%q: count %d", body, *number)
			}
		}
		delete(want, "name")
		delete(want, "count")
		if len(want) > 0 {
			t.Fatalf("%q: unknown fields taken: %v", body, want)
		}
	})
}
