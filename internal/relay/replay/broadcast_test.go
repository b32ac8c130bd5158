package replay_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/sluice-gateway/sluice/internal/openai/sse"
	"github.com/sluice-gateway/sluice/internal/relay/queue"
	"github.com/sluice-gateway/sluice/internal/relay/replay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errBroken = errors.New("broken")

const (
	done      = "data: [DONE]\n\n"
	heartbeat = ": heartbeat\n\n"
	// logBytes is enough for every event of most tests.
	logBytes = 4 << 20
	// entryOverhead is what an event counts of Limits.LogBytes beside its own bytes.
	entryOverhead = 24
)

// withLog are the limits of a broadcast with a replay log.
var withLog = replay.Limits{LogBytes: logBytes}

func token(content string) string {
	return `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"` + content +
		`"},"finish_reason":null}]}` + "\n\n"
}

// events returns the events of a stream.
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

// numbered returns a stream of n different events that cannot be merged.
func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "event: e\ndata: %d\n\n", i)
	}
	return b.String()
}

func push(t testing.TB, b *replay.Broadcast, stream string) {
	t.Helper()
	for _, e := range events(stream) {
		if err := b.Publish(e); err != nil {
			t.Fatal(err)
		}
	}
}

func subscribe(t testing.TB, b *replay.Broadcast, after int64) *replay.Subscriber {
	t.Helper()
	s, err := b.Subscribe(after)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// popAll pops the events that wait. It returns them, the number of the last one (-1: there was
// none) and the error that followed.
func popAll(s *replay.Subscriber) (stream string, last int64, err error) {
	var out []byte
	last = -1
	for {
		b, number, err := s.Pop(out)
		if err != nil {
			return string(out), last, err
		}
		out, last = b, int64(number)
	}
}

func readAll(s *replay.Subscriber) (stream string, err error) {
	for {
		part, _, err := popAll(s)
		stream += part
		if !errors.Is(err, queue.ErrEmpty) {
			return stream, err
		}
		<-s.Ready()
	}
}

// want fails the test unless s pops exactly this stream, followed by the error end.
func want(t testing.TB, s *replay.Subscriber, stream string, end error) {
	t.Helper()
	if got, _, err := popAll(s); got != stream || !errors.Is(err, end) {
		t.Fatalf("error %v, want %v; stream (-want +got): %s", err, end, cmp.Diff(stream, got))
	}
}

// wantNotKept fails the test unless Subscribe refuses to continue after the given event.
func wantNotKept(t testing.TB, b *replay.Broadcast, after int64) {
	t.Helper()
	if _, err := b.Subscribe(after); !errors.Is(err, replay.ErrNotKept) {
		t.Fatalf("subscribe after %d: error %v, want ErrNotKept", after, err)
	}
}

// A broadcast without a replay log has one subscriber. It receives all events, including comments
// and the events that were published before it came.
func TestWithoutLog(t *testing.T) {
	b := replay.NewBroadcast(replay.Limits{})
	push(t, b, heartbeat+token("a"))
	wantNotKept(t, b, 0)
	l := subscribe(t, b, -1)
	wantNotKept(t, b, -1)
	push(t, b, heartbeat+done)
	b.Close(nil)
	want(t, l, heartbeat+token("a")+heartbeat+done, io.EOF)
	if b.NextNumber() != 4 || b.Subscribers() != 1 {
		t.Errorf("next number %d, want 4; %d subscribers, want 1", b.NextNumber(), b.Subscribers())
	}
	l.Unsubscribe()
	wantNotKept(t, b, -1)
}

func TestNoSubscriber(t *testing.T) {
	e := events(token("a"))[0]
	left := replay.NewBroadcast(replay.Limits{})
	l := subscribe(t, left, -1)
	push(t, left, token("a"))
	l.Unsubscribe()
	if err := left.Publish(e); !errors.Is(err, replay.ErrNoSubscriber) || errors.Is(err, queue.ErrTooSlow) {
		t.Errorf("left: %v", err)
	}
	want(t, l, "", replay.ErrUnsubscribed)

	slow := replay.NewBroadcast(replay.Limits{Queue: queue.Limits{MergeAfter: 3, MaxEvents: 3}})
	l = subscribe(t, slow, -1)
	push(t, slow, numbered(3))
	for range 2 {
		if err := slow.Publish(events(numbered(1))[0]); !errors.Is(err, replay.ErrNoSubscriber) || !errors.Is(err, queue.ErrTooSlow) {
			t.Errorf("slow: %v", err)
		}
	}
	want(t, l, "", queue.ErrTooSlow)
}

// With a replay log any number of subscribers can continue after any event.
func TestWithLog(t *testing.T) {
	b := replay.NewBroadcast(withLog)
	stream := numbered(5)
	push(t, b, heartbeat+stream)
	if b.NextNumber() != 5 {
		t.Fatalf("a comment has a number: %d", b.NextNumber())
	}
	var all []*replay.Subscriber
	for after := range int64(6) {
		l := subscribe(t, b, after-1)
		all = append(all, l)
		if _, number, _ := l.Pop(nil); after < 5 && number != uint64(after) {
			t.Errorf("after %d: %d", after-1, number)
		}
	}
	wantNotKept(t, b, 5)
	wantNotKept(t, b, -2)
	wantNotKept(t, b, 1<<63-1)
	push(t, b, heartbeat+done)
	b.Close(nil)
	list := events(stream + done)
	for i, l := range all {
		rest := ""
		for _, e := range list[min(i+1, 5):] {
			rest += string(e.Raw)
		}
		want(t, l, rest, io.EOF)
	}
	want(t, subscribe(t, b, 4), done, io.EOF)
	want(t, subscribe(t, b, 5), "", io.EOF)
	wantNotKept(t, b, 6)
}

// The producer may reuse its buffer after Publish.
func TestCopies(t *testing.T) {
	b := replay.NewBroadcast(withLog)
	l := subscribe(t, b, -1)
	stream := "data: small\n\ndata: " + strings.Repeat("large", 1000) + "\n\n"
	for _, e := range events(stream) {
		e.Raw = bytes.Clone(e.Raw)
		if err := b.Publish(e); err != nil {
			t.Fatal(err)
		}
		clear(e.Raw)
	}
	want(t, l, stream, queue.ErrEmpty)
	want(t, subscribe(t, b, -1), stream, queue.ErrEmpty)
}

func TestClose(t *testing.T) {
	b := replay.NewBroadcast(withLog)
	push(t, b, token("a"))
	l := subscribe(t, b, -1)
	push(t, b, token("b"))
	b.Close(errBroken)
	b.Close(nil)
	if err := b.Publish(events(done)[0]); !errors.Is(err, errBroken) {
		t.Errorf("pushed after the end: %v", err)
	}
	want(t, l, token("a")+token("b"), errBroken)
	want(t, subscribe(t, b, 0), token("b"), errBroken)
}

// A subscriber that does not read is cut off. The other subscribers receive everything.
func TestSlowBesideFast(t *testing.T) {
	b := replay.NewBroadcast(replay.Limits{LogBytes: logBytes, Queue: queue.Limits{MergeAfter: 8, MaxEvents: 8}})
	list := events(numbered(100))
	fast, slow, other := subscribe(t, b, -1), subscribe(t, b, -1), subscribe(t, b, -1)
	got := [2]string{}
	for _, e := range list {
		if err := b.Publish(e); err != nil {
			t.Fatal(err)
		}
		for i, l := range []*replay.Subscriber{fast, other} {
			part, _, err := popAll(l)
			got[i] += part
			if !errors.Is(err, queue.ErrEmpty) {
				t.Fatal(err)
			}
		}
	}
	if whole := numbered(100); got[0] != whole || got[1] != whole {
		t.Errorf("the fast subscribers received %d and %d bytes of %d", len(got[0]), len(got[1]), len(whole))
	}
	if b.Subscribers() != 2 {
		t.Errorf("%d subscribers, want 2", b.Subscribers())
	}
	want(t, slow, "", queue.ErrTooSlow)
	slow.Unsubscribe()
	want(t, slow, "", queue.ErrTooSlow)
	// A client can come back for more events than a queue would hold.
	want(t, subscribe(t, b, -1), numbered(100), queue.ErrEmpty)
}

// A subscriber is not cut off because of events that it has still to replay.
func TestReplayIsNotSlow(t *testing.T) {
	b := replay.NewBroadcast(replay.Limits{LogBytes: logBytes, Queue: queue.Limits{MergeAfter: 4, MaxEvents: 4}})
	push(t, b, numbered(500))
	l := subscribe(t, b, -1)
	list := events(numbered(504))
	for _, e := range list[500:] {
		if err := b.Publish(e); err != nil {
			t.Fatal(err)
		}
	}
	want(t, l, numbered(504), queue.ErrEmpty)
}
