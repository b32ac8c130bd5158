package main

import (
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/console"
)

// The columns of a table stand below each other, also after characters that take two columns.
func TestO8_TablesAlignWideCharacters(t *testing.T) {
	t.Parallel()
	rows := newTable("MODEL", "STATE")
	for _, name := range []string{"chat", "通义千问", "rocket-🚀"} {
		rows.add(name, "ready")
	}
	var text strings.Builder
	rows.write(&text)
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	head, _, _ := strings.Cut(lines[0], "STATE")
	for _, line := range lines[1:] {
		if before, _, _ := strings.Cut(line, "ready"); console.Columns(before) != console.Columns(head) {
			t.Errorf("the state of %q does not stand below its name:\n%s", line, text.String())
		}
	}
}

// A mark of direction in an id does not turn the cells beside it around.
func TestO8_TablesHaveNoMarksOfDirection(t *testing.T) {
	t.Parallel()
	rows := newTable("REQUEST", "STATE")
	rows.add("a\u202eb", "ready")
	var text strings.Builder
	rows.write(&text)
	if strings.ContainsRune(text.String(), '\u202e') {
		t.Errorf("%q", text.String())
	}
}

// A time that is rounded up has the next unit.
func TestO8_TimesHaveTheRightUnit(t *testing.T) {
	t.Parallel()
	for ms, want := range map[float64]string{0: "", 12.4: "12ms", 999.4: "999ms", 999.7: "1.00s", 2310: "2.31s", 192_000: "3m12s"} {
		if got := milliseconds(ms); got != want {
			t.Errorf("%v ms is written as %s, want %s", ms, got, want)
		}
	}
}

// A process that was replaced runs on for a moment when its requests have ended.
func TestO8_StatusOfReplacedProcesses(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	writePredecessors(&text, []predecessorRow{{PID: 1, Version: "v1"}, {PID: 2, Version: "v2", Requests: 1}, {PID: 3, Version: "v3", Requests: 2}})
	const want = `         before it v1 (pid 1), which has no requests now
         before it v2 (pid 2), which still has 1 request
         before it v3 (pid 3), which still has 2 requests
`
	if text.String() != want {
		t.Errorf("%s, want\n%s", text.String(), want)
	}
}

// Numbers and times are aligned to the right, and names to the left, whatever they are made of.
func TestO8_TablesAlignNamesAndNumbers(t *testing.T) {
	t.Parallel()
	rows := newTable("REPLICA", "MODEL", "FOR", "TOKENS", "SERVED")
	rows.add("1", "m1", "2m5s", "~8", 7)
	rows.add("12", "m12", "1.25s", "1234", "")
	var text strings.Builder
	rows.write(&text)
	const want = `REPLICA  MODEL    FOR  TOKENS  SERVED
1        m1      2m5s      ~8       7
12       m12    1.25s    1234       -
`
	if text.String() != want {
		t.Errorf("%s, want\n%s", text.String(), want)
	}
}
