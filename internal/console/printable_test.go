package console

import "testing"

// An id that a client has chosen cannot turn a line of a terminal around or break it.
func TestO8_WhatATerminalWouldObey(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"req-\u202e1\u2066 x\u200f":  "req- 1  x ",
		"a\u061cb\u2028c\u2029":      "a b c ",
		"\x1b[2J\x7f\u009b\r\nx\xff": " [2J    x ",
		"مرحبا 通义 👩\u200d🚀":          "مرحبا 通义 👩\u200d🚀",
	} {
		if got := Printable(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
