package sse_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/openai/sse"
)

func TestAppend(t *testing.T) {
	for name, test := range map[string]struct {
		got  []byte
		want string
	}{
		"raw":            {sse.AppendRaw(nil, []byte("data: x\r\n\r\n")), "data: x\r\n\r\n"},
		"byte order":     {sse.AppendRaw([]byte(":\n\n"), []byte("\ufeffdata: x\n\n")), ":\n\ndata: x\n\n"},
		"numbered":       {sse.AppendNumbered(nil, []byte("data: x\n\n"), 12), "id: 12\ndata: x\n\n"},
		"numbered again": {sse.AppendNumbered(nil, []byte("id: a\r\nevent: e\r\nid\r\nidea: 1\r\ndata: x\r\n\r\n"), 0), "id: 0\nevent: e\r\nidea: 1\r\ndata: x\r\n\r\n"},
		"numbered, CR":   {sse.AppendNumbered(nil, []byte("\ndata: x\rid:1\r\r"), 3), "id: 3\ndata: x\r\r"},
		"data":           {sse.AppendData(nil, []byte("a\nb\r\nc\r")), "data: a\ndata: b\ndata: c\ndata: \n\n"},
		"empty data":     {sse.AppendData(nil, nil), "data: \n\n"},
		"comment":        {sse.AppendComment(nil, "a\r\nb"), ": a  b\n\n"},
		"heartbeat":      {sse.AppendComment(nil, ""), ":\n\n"},
		"done":           {sse.AppendDone(nil), "data: [DONE]\n\n"},
	} {
		if d := cmp.Diff(test.want, string(test.got)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// Numbers and heartbeats change nothing of what a client understands.
func TestAppendedIsUnderstood(t *testing.T) {
	for name, g := range golden {
		var out []byte
		var want []string
		for i, e := range scan(t, &sse.Scanner{}, []byte("\ufeff"+g.stream)) {
			out = sse.AppendComment(out, "beat")
			if e.IsComment() {
				out = sse.AppendRaw(out, e.Raw)
				continue
			}
			out = sse.AppendNumbered(out, e.Raw, uint64(i))
			want = append(want, string(e.Data))
		}
		var got []string
		for _, e := range scan(t, &sse.Scanner{}, out) {
			if !e.IsComment() {
				got = append(got, string(e.Data))
			}
		}
		if d := cmp.Diff(strings.Join(want, "|"), strings.Join(got, "|")); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}
