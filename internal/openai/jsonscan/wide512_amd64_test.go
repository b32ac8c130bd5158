package jsonscan

import "testing"

// checkWays compares wideText512 with wideText, which skipText does not use on the same processor.
func checkWays(t *testing.T, b []byte) {
	t.Helper()
	if len(b) < wideBlock || !wide512() {
		return
	}
	end, escapes, beyond := wideText(&b[0], len(b))
	end512, escapes512, beyond512 := wideText512(&b[0], len(b))
	if end != end512 || (escapes != 0) != (escapes512 != 0) || (beyond != 0) != (beyond512 != 0) {
		t.Fatalf("%q: the text ends at %d, escapes: %#x, beyond ASCII: %#x; with AVX-512 at %d, %#x, %#x", b, end, escapes, beyond,
			end512, escapes512, beyond512)
	}
}
