package filter

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
)

// TestB6_LongBodiesAreInSharedMemory: bodies of more than 16 KiB lie in the memory that the filter
// shares, each in blocks of its own. What has no room there comes by the socket. Blocks that the
// gateway has freed are used again.
func TestB6_LongBodiesAreInSharedMemory(t *testing.T) {
	b := up(t, options{limit: 8 << 20})
	b.shares.Store(true)
	body := func(i, n int) string { return strings.Repeat(string(rune('a'+i)), n) }
	for known := false; !known; { // until the filter has read that the peer shares
		c := b.send(t, "POST", "/", body(0, 16<<10+1))
		f := b.next(t, frShared, frBody)
		if known = f.kind == frShared; known {
			_, free := f.shared()
			free()
		}
		f.decide()
		want(t, c, 200)
	}
	want(t, b.decided(t, body(0, 16<<10), frBody), 200)

	const n = 1<<20 + 1 // 33 of 256 blocks: seven have room
	var answers []<-chan answer
	var placed []frame
	for i := range 7 {
		answers = append(answers, b.send(t, "POST", "/", body(i, n)))
		placed = append(placed, b.next(t, frShared))
	}
	for i, f := range placed {
		if got, _ := f.shared(); !bytes.Equal(got, []byte(body(i, n))) {
			t.Errorf("body %d: %d bytes, of which the first is %q", i, len(got), got[:1])
		}
	}
	want(t, b.decided(t, body(7, n), frBody), 200)
	_, free := placed[3].shared()
	free()
	reused := b.send(t, "POST", "/", body(8, n))
	f := b.next(t, frShared)
	if was, is := placed[3].payload, f.payload; !bytes.Equal(was, is) {
		t.Errorf("block %d, want block %d", binary.LittleEndian.Uint32(is), binary.LittleEndian.Uint32(was))
	}
	if got, _ := f.shared(); !bytes.Equal(got, []byte(body(8, n))) {
		t.Errorf("the new body: %d bytes, of which the first is %q", len(got), got[:1])
	}
	for _, f := range append(placed, f) {
		f.decide()
	}
	for _, a := range append(answers, reused) {
		want(t, a, 200)
	}
}

// decided sends a request whose body comes in a frame of this type, and has it decided.
func (b *testbed) decided(t *testing.T, body string, kind byte) <-chan answer {
	t.Helper()
	method := "POST"
	if body == "" {
		method = "GET"
	}
	a := b.send(t, method, "/", body)
	b.next(t, kind).decide()
	return a
}
