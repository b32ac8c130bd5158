package replay_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/sluice-gateway/sluice/internal/openai/sse"
	"github.com/sluice-gateway/sluice/internal/relay/queue"
	"github.com/sluice-gateway/sluice/internal/relay/replay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errBroken = errors.New("broken")

// kept keeps all there is in a test.
var kept = replay.Limits{Keep: time.Hour}

const (
	done = "data: [DONE]\n\n"
	beat = ": beat\n\n"
	// counted is what an event counts of KeepBytes beside its bytes.
	counted = 32
)

func token(content string) string {
	return `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"` + content +
		`"},"finish_reason":null}]}` + "\n\n"
}

// events cuts a stream.
func events(stream string) (list []*sse.Event) {
	var s sse.Scanner
	s.Feed([]byte(stream))
	for s.Next() {
		e := *s.Event()
		e.Data = bytes.Clone(e.Data)
		list = append(list, &e)
	}
	return list
}

// numbered is a stream of so many different events that cannot be merged.
func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "event: e\ndata: %d\n\n", i)
	}
	return b.String()
}

func push(t testing.TB, f *replay.Fan, stream string) {
	t.Helper()
	for _, e := range events(stream) {
		if err := f.Push(e); err != nil {
			t.Fatal(err)
		}
	}
}

func attach(t testing.TB, f *replay.Fan, after int64) *replay.Listener {
	t.Helper()
	l, err := f.Attach(after)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// popAll takes what is there, and says what came after it.
func popAll(l *replay.Listener) (stream string, last int64, err error) {
	var out []byte
	last = -1
	for {
		b, number, err := l.Pop(out)
		if err != nil {
			return string(out), last, err
		}
		out, last = b, int64(number)
	}
}

// hear waits for the end of the stream.
func hear(l *replay.Listener) (stream string, err error) {
	for {
		part, _, err := popAll(l)
		stream += part
		if !errors.Is(err, queue.ErrEmpty) {
			return stream, err
		}
		<-l.Ready()
	}
}

func want(t testing.TB, l *replay.Listener, stream string, end error) {
	t.Helper()
	if got, _, err := popAll(l); got != stream || !errors.Is(err, end) {
		t.Fatalf("and then %v, want %v: %s", err, end, cmp.Diff(stream, got))
	}
}

func wantGone(t testing.TB, f *replay.Fan, after int64) {
	t.Helper()
	if _, err := f.Attach(after); !errors.Is(err, replay.ErrGone) {
		t.Fatalf("after %d: %v", after, err)
	}
}

// Without a request id there is one listener, which gets everything, comments as well, from before it came, too.
func TestUnkept(t *testing.T) {
	f := replay.NewFan(replay.Limits{})
	push(t, f, beat+token("a"))
	wantGone(t, f, 0)
	l := attach(t, f, -1)
	wantGone(t, f, -1)
	push(t, f, beat+done)
	f.End(nil)
	want(t, l, beat+token("a")+beat+done, io.EOF)
	if f.Next() != 4 || f.Listeners() != 1 {
		t.Errorf("next %d, %d listen", f.Next(), f.Listeners())
	}
	l.Detach()
	wantGone(t, f, -1)
}

func TestNobody(t *testing.T) {
	e := events(token("a"))[0]
	left := replay.NewFan(replay.Limits{})
	l := attach(t, left, -1)
	push(t, left, token("a"))
	l.Detach()
	if err := left.Push(e); !errors.Is(err, replay.ErrNobody) || errors.Is(err, queue.ErrTooSlow) {
		t.Errorf("left: %v", err)
	}
	want(t, l, "", replay.ErrDetached)

	slow := replay.NewFan(replay.Limits{Queue: queue.Limits{Soft: 3, Hard: 3}})
	l = attach(t, slow, -1)
	push(t, slow, numbered(3))
	for range 2 {
		if err := slow.Push(events(numbered(1))[0]); !errors.Is(err, replay.ErrNobody) || !errors.Is(err, queue.ErrTooSlow) {
			t.Errorf("slow: %v", err)
		}
	}
	want(t, l, "", queue.ErrTooSlow)
}

// A kept stream goes on after any of its events, for as many as like.
func TestKept(t *testing.T) {
	f := replay.NewFan(kept)
	stream := numbered(5)
	push(t, f, beat+stream)
	if f.Next() != 5 {
		t.Fatalf("a comment has a number: %d", f.Next())
	}
	var all []*replay.Listener
	for after := range int64(6) {
		l := attach(t, f, after-1)
		all = append(all, l)
		if _, number, _ := l.Pop(nil); after < 5 && number != uint64(after) {
			t.Errorf("after %d: %d", after-1, number)
		}
	}
	wantGone(t, f, 5)
	wantGone(t, f, -2)
	wantGone(t, f, 1<<63-1)
	push(t, f, beat+done)
	f.End(nil)
	list := events(stream + done)
	for i, l := range all {
		rest := ""
		for _, e := range list[min(i+1, 5):] {
			rest += string(e.Raw)
		}
		want(t, l, rest, io.EOF)
	}
	want(t, attach(t, f, 4), done, io.EOF)
	want(t, attach(t, f, 5), "", io.EOF)
	wantGone(t, f, 6)
}

// The producer's buffer is its own again after Push.
func TestCopies(t *testing.T) {
	f := replay.NewFan(kept)
	l := attach(t, f, -1)
	stream := "data: small\n\ndata: " + strings.Repeat("large", 1000) + "\n\n"
	for _, e := range events(stream) {
		e.Raw = bytes.Clone(e.Raw)
		if err := f.Push(e); err != nil {
			t.Fatal(err)
		}
		clear(e.Raw)
	}
	want(t, l, stream, queue.ErrEmpty)
	want(t, attach(t, f, -1), stream, queue.ErrEmpty)
}

func TestEnds(t *testing.T) {
	f := replay.NewFan(kept)
	push(t, f, token("a"))
	l := attach(t, f, -1)
	push(t, f, token("b"))
	f.End(errBroken)
	f.End(nil)
	if err := f.Push(events(done)[0]); !errors.Is(err, errBroken) {
		t.Errorf("pushed after the end: %v", err)
	}
	want(t, l, token("a")+token("b"), errBroken)
	want(t, attach(t, f, 0), token("b"), errBroken)
}

// What is dropped is lost, and nobody takes it for a whole stream.
func TestDrop(t *testing.T) {
	for _, ended := range []bool{false, true} {
		f := replay.NewFan(kept)
		push(t, f, token("a"))
		replaying := attach(t, f, -1)
		waiting := attach(t, f, 0)
		push(t, f, token("b"))
		through, nothingNew := attach(t, f, 1), attach(t, f, -1)
		if ended {
			f.End(nil)
		}
		f.Drop(errBroken)
		f.Drop(io.EOF)
		for range 2 {
			want(t, replaying, "", errBroken)
			want(t, nothingNew, "", errBroken)
		}
		want(t, waiting, "", errBroken)
		if ended {
			want(t, through, "", io.EOF) // it has missed nothing
		} else {
			want(t, through, "", errBroken)
		}
		if _, err := f.Attach(-1); !errors.Is(err, replay.ErrGone) || !errors.Is(err, errBroken) {
			t.Errorf("came after: %v", err)
		}
		if err := f.Push(events(done)[0]); !errors.Is(err, errBroken) {
			t.Errorf("pushed after: %v", err)
		}
	}
	f := replay.NewFan(replay.Limits{})
	push(t, f, token("a"))
	f.Drop(errBroken)
	wantGone(t, f, -1)
}

// One who does not read is given up. The others get everything, and the order in which they get it is theirs.
func TestSlowBesideFast(t *testing.T) {
	f := replay.NewFan(replay.Limits{Keep: time.Hour, Queue: queue.Limits{Soft: 8, Hard: 8}})
	list := events(numbered(100))
	fast, slow, other := attach(t, f, -1), attach(t, f, -1), attach(t, f, -1)
	got := [2]string{}
	for _, e := range list {
		if err := f.Push(e); err != nil {
			t.Fatal(err)
		}
		for i, l := range []*replay.Listener{fast, other} {
			part, _, err := popAll(l)
			got[i] += part
			if !errors.Is(err, queue.ErrEmpty) {
				t.Fatal(err)
			}
		}
	}
	if whole := numbered(100); got[0] != whole || got[1] != whole {
		t.Errorf("the fast got %d and %d bytes of %d", len(got[0]), len(got[1]), len(whole))
	}
	if f.Listeners() != 2 {
		t.Errorf("%d listen", f.Listeners())
	}
	want(t, slow, "", queue.ErrTooSlow)
	slow.Detach()
	want(t, slow, "", queue.ErrTooSlow)
	// It comes back for more than its queue would hold.
	want(t, attach(t, f, -1), numbered(100), queue.ErrEmpty)
}

// What a listener is given up for is what came since it is there, not what it replays.
func TestReplayIsNotSlow(t *testing.T) {
	f := replay.NewFan(replay.Limits{Keep: time.Hour, Queue: queue.Limits{Soft: 4, Hard: 4}})
	push(t, f, numbered(500))
	l := attach(t, f, -1)
	list := events(numbered(504))
	for _, e := range list[500:] {
		if err := f.Push(e); err != nil {
			t.Fatal(err)
		}
	}
	want(t, l, numbered(504), queue.ErrEmpty)
}
