package openai

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestStrip(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, body, want string }{
		{"first", `{"request_id":"a","model":"m"}`, `{"model":"m"}`},
		{"last", `{"model":"m","request_id":"a"}`, `{"model":"m"}`},
		{"between", `{"model":"m","timeout_ms":5,"stream":true}`, `{"model":"m","stream":true}`},
		{"all three first", `{"request_id":"a","timeout_ms":5,"max_duration_ms":6,"model":"m"}`, `{"model":"m"}`},
		{"all three last", `{"model":"m","request_id":"a","timeout_ms":5,"max_duration_ms":6}`, `{"model":"m"}`},
		{"all three apart", `{"request_id":"a","model":"m","timeout_ms":5,"n":1,"max_duration_ms":6}`, `{"model":"m","n":1}`},
		{"null", `{"request_id":null,"model":"m","timeout_ms":null}`, `{"model":"m"}`},
		{"space before", `{ "request_id" : "a" , "model" : "m" }`, `{ "model" : "m" }`},
		{"space behind", `{ "model" : "m" , "request_id" : "a" }`, `{ "model" : "m" }`},
		{"lines", "{\n  \"model\": \"m\",\n  \"timeout_ms\": 5,\n  \"n\": 1\n}\n", "{\n  \"model\": \"m\",\n  \"n\": 1\n}\n"},
		{"escaped name", `{"model":"m","\u0072equest_id":"a"}`, `{"model":"m"}`},
		{"comma in the value", `{"request_id":",\"model\":","model":"m"}`, `{"model":"m"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			body := []byte(c.body)
			r := mustScan(t, Chat, c.body)
			got, changed := r.Strip(body)
			if !changed || string(got) != c.want {
				t.Errorf("%q, %v; want %q", got, changed, c.want)
			}
			if string(body) != c.body {
				t.Errorf("the body itself was changed: %q", body)
			}
			again := mustScan(t, Chat, string(got))
			if rest, changed := again.Strip(got); changed || string(rest) != c.want {
				t.Errorf("a second time: %q, %v", rest, changed)
			}
		})
	}
}

func TestStripNothing(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"model":"m"}`,
		"\n{\t\"model\" : \"m\", \"x\":[1 , 2]\r\n} ",
		`{"model":"m","metadata":{"request_id":"a","timeout_ms":1}}`,
		`{"model":"m","requestid":"a","max_duration":1}`,
	} {
		body := []byte(text)
		r := mustScan(t, Chat, text)
		got, changed := r.Strip(body)
		if changed || &got[0] != &body[0] || len(got) != len(body) {
			t.Errorf("%q: %q, %v; want the body itself", text, got, changed)
		}
	}
}

// Bodies with the three options at random places, in random white space.
func TestStripRandom(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 4))
	space := func() string { return strings.Repeat(" ", rng.IntN(2)) + strings.Repeat("\n", rng.IntN(2)) }
	for range 3000 {
		fields := []string{`"model"` + space() + `:"m"`, `"a":{"request_id":"x"}`, `"b"` + space() + `:` + space() + `[1,{}]`, `"c":"}"`}
		fields = append(fields[:1+rng.IntN(4)], []string{`"request_id"` + space() + `:"i,}"`, `"timeout_ms":` + space() + `12`,
			`"max_duration_ms":0`}[:rng.IntN(4)]...)
		rng.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
		for i := range fields {
			fields[i] = space() + fields[i] + space()
		}
		checkStrip(t, Chat, []byte(space()+"{"+strings.Join(fields, ",")+"}"+space()))
	}
}

// checkStrip compares Strip with the naive one, and looks at what it took away.
func checkStrip(t *testing.T, e Endpoint, body []byte) {
	t.Helper()
	r := mustScan(t, e, string(body))
	got, changed := r.Strip(body)
	want, wantChanged := naiveStrip(body)
	rest, ok := members(got)
	if diff := cmp.Diff(want, rest, cmp.AllowUnexported(member{})); diff != "" || !ok || changed != wantChanged {
		t.Fatalf("%q became %q (%v):\n%s", body, got, changed, diff)
	}
	again, fault := Scan(e, jsonType, got)
	if fault != nil || again.Model != r.Model || again.cutCount != 0 {
		t.Fatalf("%q became %q: %+v, %v", body, got, again, fault)
	}
	for _, c := range r.cuts[:r.cutCount] {
		gone := string(bytes.TrimSpace(body[c.From:c.To]))
		gone = strings.TrimSuffix(strings.TrimPrefix(gone, ","), ",")
		if list, ok := members([]byte("{" + gone + "}")); !ok || len(list) != 1 && !r.empty {
			t.Fatalf("%q lost %q", body, body[c.From:c.To])
		}
		head, tail := string(got[:min(c.From, len(got))]), string(body[:c.From])
		if r.cutCount == 1 && head != tail {
			t.Fatalf("%q became %q", body, got)
		}
	}
}

func TestStripOtherBody(t *testing.T) {
	t.Parallel()
	r := mustScan(t, Chat, `{"model":"m","request_id":"a"}`)
	for name, call := range map[string]func(){
		"Strip":    func() { r.Strip([]byte(`{}`)) },
		"CacheKey": func() { r.CacheKey([]byte(`{}`), 2) },
	} {
		if got := recovered(call); got != "openai: this is not the body that was scanned" {
			t.Errorf("%s of another body: %v", name, got)
		}
	}
}

func recovered(call func()) (message string) {
	defer func() { message = fmt.Sprint(recover()) }()
	call()
	return ""
}
