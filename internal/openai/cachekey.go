package openai

import (
	"bytes"
	"encoding/binary"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

// CacheKey hashes (XXH64, seed 0) what a request shares with others that can use the same prefix cache. body must be the
// bytes that were scanned.
//
// Of a chat these are the texts of all system and developer messages, in order, then those of the first userMessages user
// messages. Of a response: the instructions, then the first userMessages inputs of the user, where an input that is a
// string is one. Each text is preceded by its length in bytes, 8 bytes big endian, so that no two lists of texts read
// alike. A text is hashed as it reads without JSON's escapes (half a surrogate pair is U+FFFD). When the content is an
// array, the texts of its text parts and the JSON of its other parts, as it stands in the body, make one text, joined
// without a separator. A content that is missing or null is an empty text; any other is its JSON.
//
// Every other request is hashed as a whole, and so is a chat or response that has no such text at all.
func (r *Request) CacheKey(body []byte, userMessages int) uint64 {
	r.mustBe(body)
	k := keyHash{body: body}
	k.digest.Reset()
	texts := 0
	for _, t := range r.turns {
		if t.role == roleSystem {
			k.add(t.text)
			texts++
		}
	}
	for _, t := range r.turns {
		if userMessages <= 0 {
			break
		}
		if t.role == roleUser {
			k.add(t.text)
			texts++
			userMessages--
		}
	}
	if texts == 0 {
		return xxhash.Sum64(body)
	}
	return k.sum()
}

// keyHash is a cache key in the making.
type keyHash struct {
	body   []byte
	digest xxhash.Digest
	buffer [256]byte // gathers short pieces, for the digest is slow with them
	used   int
}

// add takes in a text, with its length.
func (k *keyHash) add(t text) {
	if t.form == formParts {
		k.addParts(t)
		return
	}
	k.length(k.size(t))
	k.write(t)
}

// addParts takes in the parts of a content array as one text. The length comes first, so the array is walked once to
// measure it; the first parts are remembered from that, and only a longer array is walked again. (To remember all would
// let a small body of many parts take much memory.)
func (k *keyHash) addParts(t text) {
	var known [8]text
	count, size := 0, 0
	for w := k.walk(t); w.more; count++ {
		part := w.next()
		size += k.size(part)
		if count < len(known) {
			known[count] = part
		}
	}
	k.length(size)
	for _, part := range known[:min(count, len(known))] {
		k.write(part)
	}
	if count <= len(known) {
		return
	}
	n := 0
	for w := k.walk(t); w.more; n++ {
		if part := w.next(); n >= len(known) {
			k.write(part)
		}
	}
}

// partWalk goes over the parts of a content array. (Depth does not matter any more: the body is known to be valid.)
type partWalk struct {
	scan scanner
	pos  int
	more bool
}

func (k *keyHash) walk(t text) partWalk {
	w := partWalk{scan: scanner{body: k.body}}
	w.pos, w.more = w.scan.first(int(t.start), 0, ']')
	return w
}

func (w *partWalk) next() text {
	part, i := w.scan.part(w.pos, 0)
	w.pos, w.more = w.scan.next(i, ']')
	return part
}

func (k *keyHash) length(n int) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(n))
	k.put(b[:])
}

// size is how many bytes write will write.
func (k *keyHash) size(t text) int {
	if t.form == formEscaped {
		return unescapedLen(k.body[t.start:t.end])
	}
	return int(t.end - t.start)
}

func (k *keyHash) write(t text) {
	raw := k.body[t.start:t.end]
	for t.form == formEscaped {
		n := bytes.IndexByte(raw, '\\')
		if n < 0 {
			break
		}
		r, size, _ := escape(raw[n:])
		var b [utf8.UTFMax]byte
		k.put(raw[:n])
		k.put(b[:utf8.EncodeRune(b[:], r)])
		raw = raw[n+size:]
	}
	k.put(raw)
}

func (k *keyHash) put(b []byte) {
	if len(b) > len(k.buffer)-k.used {
		k.flush()
	}
	if len(b) > len(k.buffer) {
		_, _ = k.digest.Write(b) // a hash takes everything
		return
	}
	k.used += copy(k.buffer[k.used:], b)
}

func (k *keyHash) flush() {
	_, _ = k.digest.Write(k.buffer[:k.used])
	k.used = 0
}

func (k *keyHash) sum() uint64 {
	k.flush()
	return k.digest.Sum64()
}
