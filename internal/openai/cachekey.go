package openai

import (
	"bytes"
	"encoding/binary"
	"sync"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-gateway/sluice/internal/openai/jsonscan"
)

// CacheKey hashes (XXH64, seed 0) what a request shares with others that can use the same prefix
// cache of an engine. body must be the bytes that were scanned.
//
// A chat's key covers the texts of all system and developer messages, in order, then those of the
// first userMessages user messages. A response's key covers the instructions, then the first
// userMessages inputs of the user, where an input that is a string counts as one.
//
// Each text is preceded by its length in bytes, 8 bytes big endian, so that no two lists of texts
// hash the same bytes. A text is hashed without JSON's escapes; half a surrogate pair is U+FFFD.
// When the content is a list, the texts of its text parts and the JSON of its other parts, as it
// stands in the body, make one text. They are joined without a separator. A content that is missing
// or null is an empty text; any other content is its JSON.
//
// Every other request is hashed as a whole, and so is a chat or response that has no such text.
func (r *Request) CacheKey(body []byte, userMessages int) uint64 {
	r.mustBe(body)
	k := keyHash{body: body}
	k.digest.Reset()
	texts := 0
	for _, m := range r.messages {
		if m.keyed && m.role == roleSystem {
			k.add(m.text)
			texts++
		}
	}
	for _, m := range r.messages {
		if userMessages <= 0 {
			break
		}
		if m.keyed && m.role == roleUser {
			k.add(m.text)
			texts++
			userMessages--
		}
	}
	if texts == 0 {
		return xxhash.Sum64(body)
	}
	return k.sum()
}

// keyHash computes a cache key.
type keyHash struct {
	body   []byte
	digest xxhash.Digest
	buffer [256]byte // gathers short pieces, because the digest is slow with them
	used   int
}

func (k *keyHash) add(t text) {
	if n := t.end - t.start; (t.form == formParts || t.form == formEscaped) && minGathered <= n && n <= maxGathered {
		k.gather(t)
		return
	}
	if t.form == formParts {
		k.addParts(t)
		return
	}
	k.length(k.size(t))
	k.write(t)
}

// minGathered and maxGathered are the lengths of texts that are hashed from a copy without escapes.
const (
	minGathered = 256
	maxGathered = 256 << 10
)

// gathered has storage for such copies. A key needs it for microseconds.
var gathered = sync.Pool{New: func() any { return new([]byte) }}

// gather hashes a text from a copy without escapes. That takes a third of the time in which add
// measures a text first and then hashes it piece by piece.
func (k *keyHash) gather(t text) {
	space := gathered.Get().(*[]byte)
	defer gathered.Put(space)
	all := (*space)[:0]
	if t.form == formParts {
		var r jsonscan.Reader
		for more := k.open(&r, t); more; more = r.More('[') {
			part, _ := partText(&r)
			all = k.appendText(all, part)
		}
	} else {
		all = k.appendText(all, t)
	}
	k.length(len(all))
	k.put(all)
	*space = all
}

// appendText appends exactly what write hashes.
func (k *keyHash) appendText(to []byte, t text) []byte {
	raw := k.body[t.start:t.end]
	if t.form == formEscaped {
		to, _ = jsonscan.Unescape(to, raw)
		return to
	}
	return append(to, raw...)
}

// addParts hashes the parts of a content list as one text. The length comes first, so the list is
// read once to measure it. The first parts are remembered from that, and only a longer list is read
// again. To remember all parts would let a small body of many parts use much memory.
func (k *keyHash) addParts(t text) {
	var known [8]text
	var r jsonscan.Reader // Scan has validated the body
	count, size := 0, 0
	for more := k.open(&r, t); more; more = r.More('[') {
		part, _ := partText(&r)
		size += k.size(part)
		if count < len(known) {
			known[count] = part
		}
		count++
	}
	k.length(size)
	for _, part := range known[:min(count, len(known))] {
		k.write(part)
	}
	if count <= len(known) {
		return
	}
	n := 0
	for more := k.open(&r, t); more; more = r.More('[') {
		if part, _ := partText(&r); n >= len(known) {
			k.write(part)
		}
		n++
	}
}

// open makes r enter a content list.
func (k *keyHash) open(r *jsonscan.Reader, t text) (more bool) {
	r.Reset(k.body)
	r.Seek(int(t.start))
	return r.Open('[')
}

func (k *keyHash) length(n int) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(n))
	k.put(b[:])
}

// size returns how many bytes write hashes.
func (k *keyHash) size(t text) int {
	if t.form == formEscaped {
		return jsonscan.UnescapedLen(k.body[t.start:t.end])
	}
	return int(t.end - t.start)
}

// write hashes a text that is not in parts.
func (k *keyHash) write(t text) {
	raw := k.body[t.start:t.end]
	for t.form == formEscaped {
		n := bytes.IndexByte(raw, '\\')
		if n < 0 {
			break
		}
		r, size, _ := jsonscan.DecodeEscape(raw[n:])
		var b [utf8.UTFMax]byte
		k.put(raw[:n])
		k.put(b[:utf8.EncodeRune(b[:], r)])
		raw = raw[n+size:]
	}
	k.put(raw)
}

// put hashes bytes, by way of the buffer if they are few.
func (k *keyHash) put(b []byte) {
	if len(b) > len(k.buffer)-k.used {
		k.flush()
	}
	if len(b) > len(k.buffer) {
		_, _ = k.digest.Write(b) // never fails
		return
	}
	k.used += copy(k.buffer[k.used:], b)
}

func (k *keyHash) flush() {
	_, _ = k.digest.Write(k.buffer[:k.used]) // never fails
	k.used = 0
}

func (k *keyHash) sum() uint64 {
	k.flush()
	return k.digest.Sum64()
}
