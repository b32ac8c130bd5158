package request

import (
	"fmt"
	"strings"
	"testing"
)

// Texts come back as they are, also those that are too long or too many to be kept.
func TestB6_Words(t *testing.T) {
	t.Parallel()
	var w, none *Words
	w = &Words{}
	for _, text := range []string{"", "route", "route", strings.Repeat("x", maxWord), strings.Repeat("x", maxWord+1)} {
		if got := w.Of([]byte(text)); got != text || none.Of([]byte(text)) != text {
			t.Errorf("%q is %q", text, got)
		}
	}
	for i := range 3 * maxWords {
		w.Of(fmt.Append(nil, i))
	}
	if len(w.known) > maxWords {
		t.Errorf("%d texts are kept", len(w.known))
	}
}
