package sim

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// blockSize is the number of tokens in a block of the tests.
const blockSize = DefaultBlockSize

func textPrompt(text string) prompt { return newPrompt(blockSize, "").withText(text) }

func TestTokenize(t *testing.T) {
	t.Parallel()
	tests := []struct {
		text string
		want []string
	}{
		{"", []string{}},
		{"Hello world", []string{"Hello", " world"}},
		{"two  spaces", []string{"two", " ", " spaces"}},
		{"extraordinary", []string{"extraord", "inary"}},
		{"end.\n\n<|user|>\n", []string{"end", ".", "\n\n", "<|", "user", "|>", "\n"}},
		{"ééééé", []string{"éééé", "é"}},
		{"a日本語", []string{"a日本", "語"}},
		{"......", []string{"....", ".."}},
		{"tail ", []string{"tail", " "}},
	}
	for _, tt := range tests {
		if diff := cmp.Diff(tt.want, tokenize(tt.text)); diff != "" {
			t.Errorf("%q: -want +got\n%s", tt.text, diff)
		}
	}
}

func FuzzTokenize(f *testing.F) {
	f.Add("Hello from the sea.", "  And\tthen? ünïcode 日本語")
	f.Add("\xff\xfe\xfd\x80\x80\x80\x80\x80\x80\x80\x80\x80", "\x00")
	f.Add(strings.Repeat("ab ", 40), strings.Repeat("\n", 20)+"x")
	f.Fuzz(func(t *testing.T, a, b string) {
		tokens := tokenize(a + b)
		if strings.Join(tokens, "") != a+b {
			t.Fatalf("tokens of %q do not add up: %q", a+b, tokens)
		}
		for _, token := range tokens {
			if token == "" || utf8.ValidString(a+b) && !utf8.ValidString(token) {
				t.Fatalf("%q has the token %q", a+b, token)
			}
		}
		whole := textPrompt(a + b)
		if whole.tokens != len(tokens) || len(whole.blocks) != len(tokens)/blockSize {
			t.Fatalf("%q: %d tokens, %d blocks, want %d tokens", a+b, whole.tokens, len(whole.blocks), len(tokens))
		}
		// A text that is cut between two tokens and joined again has the blocks of the whole.
		for cut := range tokens {
			head := textPrompt(strings.Join(tokens[:cut], ""))
			if got := head.blocksWith(strings.Join(tokens[cut:], "")); !slices.Equal(got, whole.blocks) {
				t.Fatalf("%q cut after %d tokens: blocks %x, want %x", a+b, cut, got, whole.blocks)
			}
		}
	})
}

func TestBlocksDependOnAllBefore(t *testing.T) {
	t.Parallel()
	same := strings.Repeat(" word", blockSize)
	a, b := textPrompt(strings.Repeat(" one", blockSize)+same), textPrompt(strings.Repeat(" two", blockSize)+same)
	if a.blocks[1] == b.blocks[1] {
		t.Error("equal blocks behind different ones have equal hashes")
	}
	ids := make([]int64, 2*blockSize)
	p := newPrompt(blockSize, "").withIDs(ids)
	ids[0] = 1
	if q := newPrompt(blockSize, "").withIDs(ids); p.tokens != 32 || p.blocks[0] == q.blocks[0] || p.blocks[1] == q.blocks[1] {
		t.Error("a changed token id changes no hash")
	}
	one, two := newPrompt(blockSize, "one").withText(same), newPrompt(blockSize, "two").withText(same)
	if one.blocks[0] == two.blocks[0] || one.blocksWith(same)[1] == two.blocksWith(same)[1] {
		t.Error("prompts with different salts share blocks")
	}
}

// distinctPrompt returns a prompt of blocks that depend on word.
func distinctPrompt(word string, blocks int) prompt {
	return textPrompt(strings.Repeat(" "+word, blocks*blockSize))
}
