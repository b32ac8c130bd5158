package sim

import (
	"encoding/binary"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

// blockSize is how many tokens one block of the prefix cache holds; vLLM's default.
const blockSize = 16

const (
	maxWord  = 8 // bytes of a word that one token holds, its leading space not counted
	maxSpace = 8 // bytes of white space that one token holds
	maxPunct = 4 // bytes of punctuation that one token holds
)

// nextToken returns the length of the token that s begins with; 0 for an empty s. The tokenizer is byte-level and local:
// where a token ends depends on at most the next two bytes, so a text cut between two tokens has the tokens of its parts.
// English prose has about five bytes a token.
func nextToken(s string) int {
	switch {
	case s == "":
		return 0
	case isWord(s[0]):
		return wordLen(s)
	case s[0] == ' ' && len(s) > 1 && isWord(s[1]):
		return 1 + wordLen(s[1:])
	case isSpace(s[0]):
		return spaceLen(s)
	}
	n := 1
	for n < min(len(s), maxPunct) && !isWord(s[n]) && !isSpace(s[n]) {
		n++
	}
	return n
}

// wordLen is the length of the word, or of as much of it as fits, without cutting a character in two.
func wordLen(s string) int {
	n := 1
	for n < min(len(s), maxWord) && isWord(s[n]) {
		n++
	}
	if n == len(s) || utf8.RuneStart(s[n]) {
		return n
	}
	for cut := n - 1; cut > 0; cut-- {
		if utf8.RuneStart(s[cut]) {
			return cut
		}
	}
	return n // not UTF-8
}

// spaceLen leaves the last space before a word to that word.
func spaceLen(s string) int {
	n := 1
	for n < min(len(s), maxSpace) && isSpace(s[n]) {
		if s[n] == ' ' && n+1 < len(s) && isWord(s[n+1]) {
			break
		}
		n++
	}
	return n
}

func isSpace(b byte) bool { return b == ' ' || b == '\n' || b == '\t' || b == '\r' }

func isWord(b byte) bool {
	return b >= utf8.RuneSelf || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '_'
}

// tokenize cuts a text into its tokens.
func tokenize(text string) []string {
	tokens := make([]string, 0, len(text)/4+1)
	for text != "" {
		n := nextToken(text)
		tokens = append(tokens, text[:n])
		text = text[n:]
	}
	return tokens
}

// prompt is what the engine keeps of an input: how long it is and the hashes of its full blocks. Each hash covers
// everything before its block as well, so equal hashes mean equal prefixes.
type prompt struct {
	tokens int
	blocks []uint64
	tail   string // the text after the last full block
}

// textPrompt counts and hashes a text.
func textPrompt(text string) prompt {
	var p prompt
	p.add(text)
	return p
}

// add continues the prompt with the text that follows its last full block.
func (p *prompt) add(text string) {
	start := 0
	for i := 0; i < len(text); {
		i += nextToken(text[i:])
		p.tokens++
		if p.tokens%blockSize == 0 {
			p.blocks = append(p.blocks, chain(p.last(), text[start:i]))
			start = i
		}
	}
	p.tail = text[start:]
}

// idPrompt is a prompt that the caller has already made into token ids.
func idPrompt(ids []int64) prompt {
	p := prompt{tokens: len(ids)}
	var raw [blockSize * 8]byte
	for ; len(ids) >= blockSize; ids = ids[blockSize:] {
		for i, id := range ids[:blockSize] {
			binary.LittleEndian.PutUint64(raw[i*8:], uint64(id))
		}
		p.blocks = append(p.blocks, chain(p.last(), string(raw[:])))
	}
	return p
}

// with returns the blocks of the prompt and the text that was generated after it, which is how the next turn of a
// conversation begins.
func (p prompt) with(output string) []uint64 {
	longer := prompt{tokens: p.tokens - p.tokens%blockSize, blocks: p.blocks[:len(p.blocks):len(p.blocks)]}
	longer.add(p.tail + output)
	return longer.blocks
}

func (p prompt) last() uint64 {
	if len(p.blocks) == 0 {
		return 0
	}
	return p.blocks[len(p.blocks)-1]
}

func chain(before uint64, text string) uint64 {
	var d xxhash.Digest
	d.ResetWithSeed(before)
	_, _ = d.WriteString(text) // never fails
	return d.Sum64()
}
