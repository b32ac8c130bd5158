package console

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// terminal is a screen whose text tests read.
type terminal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (t *terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(p)
}

// screenOf returns a screen of 60 columns. With moves it has a status.
func screenOf(t *terminal, moves bool) *Screen {
	return &Screen{out: t, width: func() int { return 60 }, moves: moves}
}

// shown interprets the few control sequences of a Screen and returns the lines that stand on it.
func (t *terminal) shown() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines, row := []string{""}, 0
	text := t.text.String()
	for len(text) > 0 {
		var n int
		switch {
		case strings.HasPrefix(text, "\x1b[J"):
			lines = append(lines[:row], "")
			text = text[3:]
		case strings.HasPrefix(text, "\x1b["):
			fmt.Sscanf(text, "\x1b[%dA", &n)
			row -= n
			text = text[strings.Index(text, "A")+1:]
		case text[0] == '\n':
			row, text = row+1, text[1:]
			lines = append(lines, "")
		default:
			if text[0] != '\r' {
				lines[row] += text[:1]
			}
			text = text[1:]
		}
	}
	return lines
}

// TestO3_ConsoleFromStartToStop: a person sees the URLs once they answer, each model as it becomes
// ready, and what a stop waits for.
func TestO3_ConsoleFromStartToStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out terminal
		var mu sync.Mutex
		s := State{Title: "Sluice 1.2.3, sluice.yaml", API: "http://a/v1", Page: "http://p/", Waiting: "Envoy starts",
			Models: []Model{{Name: "chat", Needed: 2}, {Name: "idle"}}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		c := New(screenOf(&out, true))
		go func() {
			done <- c.Run(ctx, func() State { mu.Lock(); defer mu.Unlock(); return s })
		}()
		after := func(d time.Duration, change func(), want ...string) {
			t.Helper()
			mu.Lock()
			change()
			mu.Unlock()
			time.Sleep(d)
			synctest.Wait()
			got := strings.TrimSpace(strings.Join(out.shown(), "\n"))
			if all := strings.Join(want, "\n"); !strings.HasSuffix(got, all) {
				t.Errorf("the screen ends with\n%s\nwant\n%s", got, all)
			}
			if !s.Serving && strings.Contains(got, "API") {
				t.Errorf("it names the API before it answers: %s", got)
			}
		}
		after(500*time.Millisecond, func() {}, "Sluice 1.2.3, sluice.yaml", "  Envoy starts", "  chat  0 of 2 replicas")
		after(1500*time.Millisecond, func() { s.Serving = true; s.Models[0].Progress = "fetching weights: 1.0 GiB of 3.0 GiB" },
			"  API   http://a/v1", "  page  http://p/", "  chat  0 of 2 replicas, 2s, fetching weights: 1.0 GiB of …")
		after(time.Second, func() { s.Models[0].Progress = strings.Repeat("long\x1b[31m", 20) },
			"  chat  0 of 2 replicas, 3s, long [31mlong [31mlong [31mlo…")
		after(time.Second, func() { s.Models[0].Fault = "chat-0: exit status 1" },
			"  chat  chat-0: exit status 1", "  chat  0 of 2 replicas, 4s, long [31mlong [31mlong [31mlo…")
		after(time.Second, func() { s.Models[0].Fault, s.Models[0].Ready = "", 2 },
			"  chat  chat-0: exit status 1", "  chat  ready, 2 replicas, 4.1 s", "ready in 4.1 s, Ctrl-C stops the gateway")
		after(time.Hour, func() {}, "ready in 4.1 s, Ctrl-C stops the gateway")
		for range 2 { // the wait is counted anew each time
			after(3*time.Second, func() { s.Models[0].Ready, s.Models[0].Progress = 1, "" }, "  chat  1 of 2 replicas, 2s")
			after(time.Hour, func() { s.Models[0].Ready = 2 }, "ready in 4.1 s, Ctrl-C stops the gateway")
		}
		after(time.Second, func() { s.Draining, s.Until, s.Requests, s.Streams = true, time.Now().Add(30*time.Second), 3, 3 },
			"stopping", "  3 streams run, 29s left, Ctrl-C again ends them")
		after(5*time.Second, func() { s.Requests, s.Streams = 1, 0 }, "  1 request runs, 24s left, Ctrl-C again ends it")
		after(time.Second, func() { s.Requests = 0 }, "stopping", "  the processes end")
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		after(0, func() {}, "stopping", "stopped")
	})
}

// TestO3_ConsoleOfManyModels: many models are a number, and only faults have lines.
func TestO3_ConsoleOfManyModels(t *testing.T) {
	t.Parallel()
	var out terminal
	c := New(screenOf(&out, true))
	var s State
	for i := range 120 {
		s.Models = append(s.Models, Model{Name: fmt.Sprint("m", i), Needed: 1})
	}
	for i := range 20 {
		s.Models[i].Ready = 1
	}
	s.Models[50].Fault = "no node has so much memory"
	c.show(s)
	got := strings.Join(out.shown(), "\n")
	for _, want := range []string{"  m50  no node has so much memory\n  20 of 120 models are ready", "  m20  0 of 1 replica", "  and 94 models more"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "m3  ready") || len(out.shown()) > 12 {
		t.Errorf("too many lines:\n%s", got)
	}
}

// Texts are measured and cut in columns of the terminal. A character of Chinese and an emoji take
// two, and an accent that is a character of its own takes none.
func TestO3_TextsAreMeasuredInColumns(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		text    string
		columns int
		clipped string // to 6 columns
	}{
		{"chat", 4, "chat"}, {"abcdefg", 7, "abcde…"}, {"通义千问", 8, "通义…"}, {"a通义千", 7, "a通义…"}, {"通义千", 6, "通义千"},
		{"🚀🚀🚀🚀", 8, "🚀🚀…"}, {"cafe\u0301s x", 7, "cafe\u0301s…"}, {"", 0, ""},
	} {
		if got := Columns(test.text); got != test.columns {
			t.Errorf("%q has %d columns, want %d", test.text, got, test.columns)
		}
		if got := Clip(test.text, 6); got != test.clipped || Columns(got) > 6 {
			t.Errorf("%q is cut to %q, want %q", test.text, got, test.clipped)
		}
	}
	if got := Clip("chat", 0); got != "" {
		t.Errorf("no columns hold %q", got)
	}
	var out terminal
	s := screenOf(&out, true) // of 60 columns
	s.SetStatus(strings.Repeat("通", 40))
	if got := Columns(out.shown()[0]); got > 59 {
		t.Errorf("a line of the status has %d columns and wraps", got)
	}
}

// TestO3_LinesAboveTheStatus: a line of the log stands above the status, and a dumb terminal has no
// status at all.
func TestO3_LinesAboveTheStatus(t *testing.T) {
	t.Parallel()
	var out, dumb terminal
	s := screenOf(&out, true)
	s.SetStatus("one", "two")
	s.Printf("warning\n")
	s.SetStatus("one", "two") // nothing new
	if got := out.shown(); strings.Join(got, "|") != "warning|one|two" || strings.Count(out.text.String(), "one") != 2 {
		t.Errorf("%q", out.text.String())
	}
	s = screenOf(&dumb, false)
	s.SetStatus("one")
	s.Printf("line\n")
	if got := dumb.text.String(); got != "line\n" {
		t.Errorf("%q", got)
	}
}
