package sse_test

import (
	"testing"

	"github.com/sluice-gateway/sluice/internal/openai/sse"
)

func TestR2_RemoveMember(t *testing.T) {
	for stream, want := range map[string]string{
		"data: {\"usage\":{\"a\":1},\"b\":2}\n\n":                 "data: {\"usage\":null,\"b\":2}\n\n",
		"id: 7\ndata:{\"usage\":{\"a\":1},\"b\":2}\nevent: x\n\n": "id: 7\ndata:{\"usage\":null,\"b\":2}\nevent: x\n\n",
		"data: {\"b\":2, \"usage\" : {\"a\":1} }\n\n":             "data: {\"b\":2 }\n\n",
		"data: {\"b\":[1,2],\"usage\":{\"a\":1},\"c\":3}\n\n":     "data: {\"b\":[1,2],\"c\":3}\n\n",
		"data: {\"usage\":\ndata: {\"a\":1}}\n\n":                 "data: {\"usage\":\ndata: {\"a\":1}}\n\n",
	} {
		var s sse.Scanner
		var tr sse.Tracker
		s.Feed([]byte(stream + "data: next\n\n"))
		if !s.Next() {
			t.Fatal(stream)
		}
		e := s.Event()
		at := tr.See(e).UsageAt
		e.RemoveMember(at.From, at.To)
		var again sse.Scanner
		again.Feed([]byte(want))
		if again.Next(); string(e.Raw) != want || string(e.Data) != string(again.Event().Data) {
			t.Errorf("%q became %q with the data %q", stream, e.Raw, e.Data)
		}
		if !s.Next() || string(s.Event().Data) != "next" {
			t.Errorf("%q: the next event is %q", stream, s.Event().Raw)
		}
	}
}
