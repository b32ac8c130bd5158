package trace

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestB1_TheConversationTraceIsComplete(t *testing.T) {
	requests, err := Conversation()
	if err != nil {
		t.Fatal(err)
	}
	tokens := 0
	for _, r := range requests {
		tokens += r.Prompt
	}
	if len(requests) != 12031 || tokens != 144793823 {
		t.Errorf("the trace has %d requests with %d tokens, want 12031 with 144793823", len(requests), tokens)
	}
}

func TestReadNumbersBlocksInOrder(t *testing.T) {
	requests, err := Read(strings.NewReader(
		`{"timestamp": 5, "input_length": 513, "output_length": 3, "hash_ids": [99, 7]}` + "\n" +
			`{"timestamp": 9, "input_length": 512, "output_length": 0, "hash_ids": [7]}` + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []Request{
		{At: 5 * time.Millisecond, Prompt: 513, Output: 3, Blocks: []int32{0, 1}},
		{At: 9 * time.Millisecond, Prompt: 512, Blocks: []int32{1}},
	}
	if diff := cmp.Diff(want, requests); diff != "" {
		t.Error(diff)
	}
}

func TestReadNamesTheFaultyRequest(t *testing.T) {
	first := `{"timestamp": 5, "input_length": 1, "output_length": 3, "hash_ids": [1]}` + "\n"
	for name, c := range map[string]struct{ trace, want string }{
		"empty":     {"", "request 1 of the trace: EOF"},
		"no JSON":   {first + "x", "request 2 of the trace"},
		"unordered": {first + strings.Replace(first, "5", "4", 1), "timestamp 4 is before"},
		"no tokens": {strings.Replace(first, ": 1,", ": 0,", 1), "the prompt needs a token"},
		"ids":       {strings.Replace(first, "[1]", "[]", 1), "0 hash_ids for 1 tokens"},
	} {
		if _, err := Read(strings.NewReader(c.trace)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, c.want)
		}
	}
}
