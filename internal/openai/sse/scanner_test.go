package sse_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-gateway/sluice/internal/openai/sse"
)

var byValue = []cmp.Option{cmpopts.IgnoreUnexported(sse.Event{}), cmpopts.EquateEmpty()}

// diff compares events. (cmp.Diff alone would take a minute for all splits.)
func diff(want, got []sse.Event) string {
	if reflect.DeepEqual(want, got) {
		return ""
	}
	return cmp.Diff(want, got, byValue...)
}

func scan(t testing.TB, s *sse.Scanner, chunks ...[]byte) (events []sse.Event) {
	t.Helper()
	take := func() {
		for s.Next() {
			e := *s.Event()
			e.Raw, e.Data = bytes.Clone(e.Raw), bytes.Clone(e.Data)
			e.Type, e.ID, e.Error = bytes.Clone(e.Type), bytes.Clone(e.ID), bytes.Clone(e.Error)
			events = append(events, e)
		}
	}
	for _, c := range chunks {
		c = bytes.Clone(c)
		s.Feed(c)
		take()
		clear(c) // what is needed later must have been copied
	}
	s.End()
	take()
	return events
}

func TestScanner(t *testing.T) {
	for name, test := range map[string]struct {
		stream string
		want   []sse.Event
	}{
		"one":           {"data: x\n\n", []sse.Event{{Raw: []byte("data: x\n\n"), Data: []byte("x")}}},
		"no space":      {"data:x\n\n", []sse.Event{{Raw: []byte("data:x\n\n"), Data: []byte("x")}}},
		"two spaces":    {"data:  x\n\n", []sse.Event{{Raw: []byte("data:  x\n\n"), Data: []byte(" x")}}},
		"no colon":      {"data\n\n", []sse.Event{{Raw: []byte("data\n\n")}}},
		"lines":         {"data: a\ndata\ndata: b\n\n", []sse.Event{{Raw: []byte("data: a\ndata\ndata: b\n\n"), Data: []byte("a\n\nb")}}},
		"lines twice":   {"data: a\ndata: b\n\ndata: c\ndata: d\n\n", []sse.Event{{Raw: []byte("data: a\ndata: b\n\n"), Data: []byte("a\nb")}, {Raw: []byte("data: c\ndata: d\n\n"), Data: []byte("c\nd")}}},
		"CRLF":          {"data: a\r\ndata: b\r\n\r\n", []sse.Event{{Raw: []byte("data: a\r\ndata: b\r\n\r\n"), Data: []byte("a\nb")}}},
		"byte order":    {"\ufeffdata: x\n\n", []sse.Event{{Raw: []byte("\ufeffdata: x\n\n"), Data: []byte("x")}}},
		"comment":       {": hi\n\n", []sse.Event{{Raw: []byte(": hi\n\n")}}},
		"unknown field": {"fault: x\nDATA: y\n\n", []sse.Event{{Raw: []byte("fault: x\nDATA: y\n\n")}}},
		"error line":    {"error: x\n\n", []sse.Event{{Raw: []byte("error: x\n\n"), Error: []byte("x")}}},
		"all fields": {
			"id: 7\nevent: e\nretry: 1500\ndata: x\n\n",
			[]sse.Event{{Raw: []byte("id: 7\nevent: e\nretry: 1500\ndata: x\n\n"), Data: []byte("x"), Type: []byte("e"), ID: []byte("7"), HasID: true}},
		},
		"bad id":            {"id: a\x00b\n\n", []sse.Event{{Raw: []byte("id: a\x00b\n\n")}}},
		"empty id":          {"id\n\n", []sse.Event{{Raw: []byte("id\n\n"), HasID: true}}},
		"blank lines":       {"\n\r\n", []sse.Event{{Raw: []byte("\n")}, {Raw: []byte("\r\n")}}},
		"cut":               {"data: x\n", []sse.Event{{Raw: []byte("data: x\n"), Data: []byte("x"), Cut: true}}},
		"cut in a line":     {"data: [DO", []sse.Event{{Raw: []byte("data: [DO"), Data: []byte("[DO"), Cut: true}}},
		"half of a CRLF":    {"data: x\r\n\r", []sse.Event{{Raw: []byte("data: x\r\n\r"), Data: []byte("x")}}},
		"LF after CR alone": {"data: x\r\r\ndata: y\n\n", []sse.Event{{Raw: []byte("data: x\r\r"), Data: []byte("x")}, {Raw: []byte("\ndata: y\n\n"), Data: []byte("y")}}},
		"empty":             {"", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := scan(t, &sse.Scanner{}, []byte(test.stream))
			if d := cmp.Diff(test.want, got, byValue...); d != "" {
				t.Error(d)
			}
		})
	}
}

// A stream that writes CR alone is not late by one event.
func TestCarriageReturnAlone(t *testing.T) {
	var s sse.Scanner
	s.Feed([]byte("data: x\r\r"))
	if !s.Next() || string(s.Event().Data) != "x" {
		t.Error("the event waits for a byte that does not come")
	}
	s.Feed([]byte("data: x\r\n\r"))
	if s.Next() {
		t.Error("the event did not wait for its last byte")
	}
}

func TestPlain(t *testing.T) {
	for stream, want := range map[string]bool{
		"data: x\n\n": true, "data:x\r\n\r\n": true, "data: x\ndata: y\n\n": false, "data: x\nid: 1\n\n": false,
		": c\ndata: x\n\n": false, "\ufeffdata: x\n\n": false, "data: x\n": false, "event: x\n\n": false, "\n": false,
	} {
		for _, e := range scan(t, &sse.Scanner{}, []byte(stream)) {
			if e.IsPlain() != want {
				t.Errorf("%q: plain is %v", stream, e.IsPlain())
			}
		}
	}
}

func TestLimit(t *testing.T) {
	fits := "data: " + strings.Repeat("x", 92) + "\n\n"
	for _, size := range []int{1, 7, 1000} {
		s := &sse.Scanner{Limit: 100}
		if n := len(scan(t, s, split(fits+fits, size)...)); n != 2 || s.Err() != nil {
			t.Errorf("in chunks of %d: %d events, %v", size, n, s.Err())
		}
		s = &sse.Scanner{Limit: 99}
		if n := len(scan(t, s, split(": \n\n"+fits, size)...)); n != 1 || !errors.Is(s.Err(), sse.ErrTooLarge) {
			t.Errorf("above the limit, in chunks of %d: %d events, %v", size, n, s.Err())
		}
		if s.Buffered() > 200 {
			t.Errorf("%d bytes held after the fault", s.Buffered())
		}
	}
	s := &sse.Scanner{}
	if scan(t, s, split(strings.Repeat("x", sse.DefaultLimit+1), 1<<20)...); s.Err() == nil {
		t.Error("no limit by default")
	}
}

func split(text string, size int) (chunks [][]byte) {
	for b := []byte(text); len(b) > 0; {
		n := min(size, len(b))
		chunks = append(chunks, b[:n])
		b = b[n:]
	}
	return chunks
}

// reference reads a whole stream as the specification says: line by line.
func reference(stream string) (events []sse.Event) {
	stream = strings.TrimPrefix(stream, "\ufeff")
	stream = strings.ReplaceAll(strings.ReplaceAll(stream, "\r\n", "\n"), "\r", "\n")
	lines := strings.Split(stream, "\n")
	var data []string
	var e sse.Event
	for _, line := range lines[:len(lines)-1] {
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			if data != nil {
				e.Data = []byte(strings.Join(data, "\n"))
				events = append(events, e)
			}
			e, data = sse.Event{}, nil
		case field == "data":
			data = append(data, value)
		case field == "event":
			e.Type = []byte(value)
		case field == "id" && !strings.Contains(value, "\x00"):
			e.ID, e.HasID = []byte(value), true
		}
	}
	return events
}

// meaning is what a client gets of events.
func meaning(events []sse.Event) string {
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintf(&b, "type %q, data %q, id %q %v\n", e.Type, e.Data, e.ID, e.HasID)
	}
	return b.String()
}

func FuzzSplit(f *testing.F) {
	for _, g := range golden {
		f.Add([]byte(g.stream), uint64(1))
	}
	for _, s := range []string{
		"\ufeffdata: a\rdata: b\r\r\ndata: c\r\n\r\n\n\ndata:d\n\r", "\r\r\r\n\n\r", "\xef\xbb", "id\ndata\n\nevent", "data: x\r\r\rdata: y\n\r\n",
		"data: a\n\n\ufeffdata: b\n\n",
	} {
		f.Add([]byte(s), uint64(2))
	}
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64) {
		whole := scan(t, &sse.Scanner{}, stream)
		var raw []byte
		var dispatched []sse.Event
		for _, e := range whole {
			raw = append(raw, e.Raw...)
			if !e.IsComment() && !e.Cut {
				dispatched = append(dispatched, e)
			}
		}
		if !bytes.Equal(raw, stream) {
			t.Fatalf("the events are %q, the stream is %q", raw, stream)
		}
		if want, got := meaning(reference(string(stream))), meaning(dispatched); want != got {
			t.Fatalf("not as specified: %s", cmp.Diff(want, got))
		}
		r := rand.New(rand.NewPCG(seed, 1))
		for range 4 {
			if d := diff(whole, scan(t, &sse.Scanner{}, randomly(r, stream)...)); d != "" {
				t.Fatalf("split otherwise: %s", d)
			}
		}
	})
}

// randomly splits a stream, sometimes into single bytes, sometimes with empty chunks.
func randomly(r *rand.Rand, stream []byte) (chunks [][]byte) {
	longest := 1 + r.IntN(1+min(len(stream), 300))
	for len(stream) > 0 {
		n := min(r.IntN(longest+1), len(stream))
		chunks = append(chunks, stream[:n])
		stream = stream[n:]
	}
	return chunks
}

func TestEverySplit(t *testing.T) {
	for name, g := range golden {
		whole := scan(t, &sse.Scanner{}, []byte(g.stream))
		for i := range len(g.stream) + 1 {
			got := scan(t, &sse.Scanner{}, []byte(g.stream[:i]), []byte(g.stream[i:]))
			if d := diff(whole, got); d != "" {
				t.Fatalf("%s, split at %d: %s", name, i, d)
			}
		}
	}
}
