package sim

import (
	"encoding/binary"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

const (
	maxWord  = 8 // bytes of a word in one token, without its leading space
	maxSpace = 8 // bytes of white space in one token
	maxPunct = 4 // bytes of punctuation in one token
)

// nextToken returns the length of the first token of s; 0 for an empty s. The tokenizer works on
// bytes and locally: the end of a token depends on at most the next two bytes. So a text that is
// cut between two tokens has the tokens of its parts. English prose has about five bytes per token.
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

// wordLen returns the length of the word at the beginning of s, or of as much of it as fits into a
// token. It does not cut inside a UTF-8 character.
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

// spaceLen returns the length of the white space at the beginning of s. The last space before a
// word belongs to that word.
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

// isWord tells whether b is part of a word: a letter, a digit, _ or part of a character beyond
// ASCII.
func isWord(b byte) bool {
	return b >= utf8.RuneSelf || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '_'
}

func tokenize(text string) []string {
	tokens := make([]string, 0, len(text)/4+1)
	for text != "" {
		n := nextToken(text)
		tokens = append(tokens, text[:n])
		text = text[n:]
	}
	return tokens
}

// prompt is what the engine keeps of an input: its length in tokens and the hashes of its full
// blocks. Each hash also covers everything before its block, so equal hashes mean equal prefixes.
type prompt struct {
	// blockSize is the number of tokens in a block. 0: the prompt is never cached.
	blockSize int
	// root is what the first block follows. Prompts with different roots share no block.
	root uint64
	// tokens is the length in tokens.
	tokens int
	// blocks are the hashes of the full blocks.
	blocks []uint64
	// tail is the text after the last full block.
	tail string
}

// newPrompt returns a prompt without a token, for blocks of so many tokens. Prompts share blocks
// only with prompts of the same salt: cache_salt of vLLM.
func newPrompt(blockSize int, salt string) prompt {
	return prompt{blockSize: blockSize, root: rootOf(salt)}
}

// withText returns the prompt, which must have no token, followed by a text.
func (p prompt) withText(text string) prompt {
	p.add(text)
	return p
}

func rootOf(salt string) uint64 {
	if salt == "" {
		return 0
	}
	return xxhash.Sum64String(salt)
}

// add extends the prompt by text, which follows the last full block.
func (p *prompt) add(text string) {
	start := 0
	for i := 0; i < len(text); {
		i += nextToken(text[i:])
		p.tokens++
		if p.tokens%p.blockSize == 0 {
			p.blocks = append(p.blocks, hashBlock(p.lastBlock(), text[start:i]))
			start = i
		}
	}
	p.tail = text[start:]
}

// withIDs returns the prompt, which must have no token, followed by token ids.
func (p prompt) withIDs(ids []int64) prompt {
	p.tokens = len(ids)
	raw := make([]byte, p.blockSize*8)
	for ; len(ids) >= p.blockSize; ids = ids[p.blockSize:] {
		for i, id := range ids[:p.blockSize] {
			binary.LittleEndian.PutUint64(raw[i*8:], uint64(id))
		}
		p.blocks = append(p.blocks, hashBlock(p.lastBlock(), string(raw)))
	}
	return p
}

// blocksWith returns the blocks of the prompt followed by the generated text output. The prompt of
// the next turn of a conversation begins with them.
func (p prompt) blocksWith(output string) []uint64 {
	longer := prompt{blockSize: p.blockSize, root: p.root, tokens: p.tokens - p.tokens%p.blockSize, blocks: p.blocks[:len(p.blocks):len(p.blocks)]}
	longer.add(p.tail + output)
	return longer.blocks
}

// lastBlock returns the hash of the last full block; the root if there is none.
func (p prompt) lastBlock() uint64 {
	if len(p.blocks) == 0 {
		return p.root
	}
	return p.blocks[len(p.blocks)-1]
}

// hashBlock returns the hash of a block whose predecessor has the hash before.
func hashBlock(before uint64, text string) uint64 {
	var d xxhash.Digest
	d.ResetWithSeed(before)
	_, _ = d.WriteString(text) // never fails
	return d.Sum64()
}
