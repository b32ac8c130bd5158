package prefix

import "golang.org/x/sys/cpu"

// wideTake is takePlainly for so many stripes, 1 or more, on a processor with AVX2.
//
//go:noescape
func wideTake(l *lanes, text *byte, stripes int)

// take hashes the whole stripes of a text.
func (l *lanes) take(text []byte) {
	if n := len(text) / stripe; n > 0 && cpu.X86.HasAVX2 {
		wideTake(l, &text[0], n)
		return
	}
	l.takePlainly(text)
}
