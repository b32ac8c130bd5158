package queue_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/sluice-gateway/sluice/internal/memory"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
	"github.com/sluice-gateway/sluice/internal/relay/queue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

func push(t testing.TB, q *queue.Queue, stream string) {
	t.Helper()
	for _, e := range events(stream) {
		if err := q.Push(e); err != nil {
			t.Fatal(err)
		}
	}
}

// popAll takes what is there.
func popAll(t testing.TB, q *queue.Queue) (stream string, numbers []uint64) {
	t.Helper()
	var out []byte
	for {
		b, number, err := q.Pop(out)
		if errors.Is(err, queue.ErrEmpty) || errors.Is(err, io.EOF) {
			return string(out), numbers
		}
		if err != nil {
			t.Fatal(err)
		}
		out = b
		numbers = append(numbers, number)
	}
}

func text(index int, content string) string {
	return fmt.Sprintf(`data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":%d,"delta":{"content":"%s"},"logprobs":null,"finish_reason":null}]}`+"\n\n", index, content)
}

const done = "data: [DONE]\n\n"

func TestOrderBelowSoft(t *testing.T) {
	q := queue.New(queue.Limits{})
	stream := ": hi\n\n" + text(0, "a") + text(0, "b") + "event: x\r\ndata: y\r\n\r\n\n\n"
	push(t, q, stream)
	got, numbers := popAll(t, q)
	if d := cmp.Diff(stream, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]uint64{0, 1, 2, 3}, numbers[:4]); d != "" {
		t.Error(d)
	}
}

func TestPastSoft(t *testing.T) {
	q := queue.New(queue.Limits{MergeAfter: 2, MaxEvents: 8})
	finish := strings.Replace(text(0, ""), `"finish_reason":null`, `"finish_reason":"stop"`, 1)
	push(t, q, text(0, "a")+text(0, "b")+text(0, "c")+text(0, "d")+": beat\n\n"+text(0, "e")+text(0, "f")+finish+done)
	got, numbers := popAll(t, q)
	if d := cmp.Diff(text(0, "a")+text(0, "bcd")+": beat\n\n"+text(0, "ef")+finish+done, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]uint64{0, 3, 4, 6, 7, 8}, numbers); d != "" {
		t.Error(d)
	}
}

// What comes first is there at once, at any pressure that a queue can be under.
func TestFirstTokenAtOnce(t *testing.T) {
	q := queue.New(queue.Limits{MergeAfter: 1, MaxEvents: 2})
	push(t, q, text(0, "a"))
	select {
	case <-q.Ready():
	default:
		t.Fatal("nobody was told")
	}
	if got, _ := popAll(t, q); got != text(0, "a") {
		t.Errorf("got %q", got)
	}
}

func TestTooSlow(t *testing.T) {
	q := queue.New(queue.Limits{MergeAfter: 2, MaxEvents: 4})
	push(t, q, strings.Repeat(": x\n\n", 4))
	if err := q.Push(events(": x\n\n")[0]); !errors.Is(err, queue.ErrTooSlow) {
		t.Errorf("past hard: %v", err)
	}
	if err := q.Push(events(": x\n\n")[0]); !errors.Is(err, queue.ErrTooSlow) {
		t.Errorf("after that: %v", err)
	}
	if _, _, err := q.Pop(nil); !errors.Is(err, queue.ErrTooSlow) || q.Bytes() != 0 || q.Len() != 0 {
		t.Errorf("the client gets %v; %d events and %d bytes remain", err, q.Len(), q.Bytes())
	}
}

// Memory is bounded by bytes as well, though one event of any size goes through.
func TestBytes(t *testing.T) {
	large := "data: " + strings.Repeat("x", 100_000) + "\n\n"
	q := queue.New(queue.Limits{MaxBytes: 250_000})
	for range 10 {
		push(t, q, large)
		if q.Bytes() < len(large) {
			t.Errorf("%d bytes held", q.Bytes())
		}
		popAll(t, q)
	}
	if q.Bytes() > 32<<10 {
		t.Errorf("%d bytes held by an empty queue", q.Bytes())
	}
	pushed := 0
	for q.Push(events(large)[0]) == nil {
		pushed++
	}
	if pushed != 3 {
		t.Errorf("%d events of 100 kB in 250 kB", pushed)
	}
}

// Whatever has passed through, an empty queue holds a few small buffers, and counts them right.
func TestBytesOfEmpty(t *testing.T) {
	q := queue.New(queue.Limits{MergeAfter: 10})
	for i := range 2000 {
		push(t, q, text(0, strings.Repeat("x", i*7919%3000)))
		if i%50 == 49 {
			popAll(t, q)
		}
	}
	popAll(t, q)
	if n := q.Bytes(); n < 100 || n > 20<<10 {
		t.Errorf("%d bytes held", n)
	}
}

// An empty queue does not keep the room of the many events that once waited.
func TestBytesAfterMany(t *testing.T) {
	q := queue.New(queue.Limits{})
	push(t, q, strings.Repeat(": x\n\n", queue.DefaultMaxEvents))
	if n := q.Bytes(); n < queue.DefaultMaxEvents*int(unsafe.Sizeof([]byte{})) {
		t.Errorf("%d bytes held by %d events", n, q.Len())
	}
	popAll(t, q)
	empty := q.Bytes()
	if empty < 0 || empty > 1<<10 {
		t.Errorf("%d bytes held by an empty queue", empty)
	}
	push(t, q, done)
	if n := q.Bytes(); n < empty+100 { // there are new places for events
		t.Errorf("%d bytes held by one event, and %d by none", n, empty)
	}
	if got, _ := popAll(t, q); got != done {
		t.Errorf("got %q after that", got)
	}
}

// What waits is reserved from the budget. A queue that gets no memory is full.
func TestBudget(t *testing.T) {
	budget := memory.NewBudget(100_000)
	most := budget.LimitOf(memory.Queues)
	q := queue.New(queue.Limits{MaxBytes: 1 << 20, Memory: budget})
	push(t, q, text(0, strings.Repeat("x", 20_000)))
	if n := budget.Used(memory.Queues); n < 20_000 {
		t.Errorf("%d bytes reserved for an event of 20 kB", n)
	}
	popAll(t, q)
	if n := budget.Used(memory.Queues); n > 10_000 {
		t.Errorf("%d bytes reserved for an empty queue", n)
	}
	for err := error(nil); err == nil; err = q.Push(events(": " + strings.Repeat("x", 1000) + "\n\n")[0]) {
		if n := budget.Used(memory.Queues); n > most {
			t.Fatalf("%d bytes reserved of %d", n, most)
		}
	}
	if n := budget.Used(memory.Queues); n != 0 || q.Len() != 0 {
		t.Errorf("%d bytes reserved for a queue that was dropped, with %d events", n, q.Len())
	}
	if _, _, err := q.Pop(nil); !errors.Is(err, queue.ErrTooSlow) {
		t.Errorf("the client gets %v", err)
	}
}

// A client that does not read at all: the queue stays as small as its limits, however long the
// stream.
func TestBounded(t *testing.T) {
	q := queue.New(queue.Limits{})
	chunk := events(text(0, strings.Repeat("x", 400)))[0]
	most, pushed := 0, 0
	for q.Push(chunk) == nil {
		pushed++
		most = max(most, q.Bytes())
		if pushed > 1_000_000 {
			t.Fatal("never full")
		}
	}
	if pushed < 5*queue.DefaultMaxEvents || most > queue.DefaultMaxBytes*2 {
		t.Errorf("full after %d events, at most %d bytes", pushed, most)
	}
	t.Logf("%d events, %d bytes", pushed, most)
}

func TestNeverTooLarge(t *testing.T) {
	q := queue.New(queue.Limits{MergeAfter: 1, MaxEvents: 1000})
	for range 1000 {
		push(t, q, text(0, strings.Repeat("x", 40)))
	}
	stream, numbers := popAll(t, q)
	if len(numbers) < 2 || len(numbers) > 20 {
		t.Errorf("%d events of 1000", len(numbers))
	}
	for _, e := range events(stream) {
		if len(e.Raw) > 8<<10 {
			t.Errorf("an event of %d bytes", len(e.Raw))
		}
	}
}

func TestEnd(t *testing.T) {
	broken := errors.New("broken")
	for _, why := range []error{nil, broken} {
		q := queue.New(queue.Limits{})
		push(t, q, done)
		q.Close(why)
		q.Close(errors.New("later"))
		want := why
		if why == nil {
			want = io.EOF
		}
		if b, _, err := q.Pop(nil); string(b) != done || err != nil {
			t.Errorf("what waited: %q, %v", b, err)
		}
		if _, _, err := q.Pop(nil); !errors.Is(err, want) {
			t.Errorf("after the end: %v", err)
		}
		if err := q.Push(events(done)[0]); !errors.Is(err, want) {
			t.Errorf("pushed after the end: %v", err)
		}
	}
	q := queue.New(queue.Limits{})
	push(t, q, done)
	q.Drop(broken)
	if _, _, err := q.Pop(nil); !errors.Is(err, broken) || q.Bytes() != 0 {
		t.Errorf("dropped: %v, %d bytes", err, q.Bytes())
	}
}

// A producer and a slow consumer, in virtual time: nothing is lost and nobody sleeps for ever.
func TestProducerAndConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queue.New(queue.Limits{MergeAfter: 4, MaxEvents: 16})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		go func() {
			for i := range 500 {
				push(t, q, text(0, fmt.Sprint(i, " ")))
				if i%7 == 0 {
					time.Sleep(time.Millisecond)
				}
			}
			push(t, q, done)
			q.Close(nil)
		}()
		var out []byte
		for popped := 0; ; popped++ {
			b, _, err := q.Pop(out)
			switch {
			case errors.Is(err, io.EOF):
				var want strings.Builder
				for i := range 500 {
					fmt.Fprint(&want, i, " ")
				}
				if got := accumulate(t, string(out))[0].text["content"]; got != want.String() {
					t.Errorf("got %q", got)
				}
				if popped >= 500 {
					t.Errorf("%d events: none was merged", popped)
				}
				return
			case errors.Is(err, queue.ErrEmpty):
				select {
				case <-q.Ready():
				case <-ctx.Done():
					t.Fatal("asleep for ever")
				}
				continue
			}
			out = b
			time.Sleep(3 * time.Millisecond)
		}
	})
}

func TestNoAllocations(t *testing.T) {
	q := queue.New(queue.Limits{})
	e := events(text(0, "token"))[0]
	var buf []byte
	if n := testing.AllocsPerRun(100, func() {
		for range 3 {
			if q.Push(e) != nil {
				t.Fatal("full")
			}
		}
		for range 3 {
			buf, _, _ = q.Pop(buf[:0])
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkPushPop(b *testing.B) {
	q := queue.New(queue.Limits{})
	e := events(text(0, "token"))[0]
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		if q.Push(e) != nil {
			b.Fatal("full")
		}
		buf, _, _ = q.Pop(buf[:0])
	}
}

// BenchmarkCoalesce is the cost of an event for a client that does not read.
func BenchmarkCoalesce(b *testing.B) {
	q := queue.New(queue.Limits{MergeAfter: 1, MaxEvents: 256})
	e := events(text(0, "token"))[0]
	b.ReportAllocs()
	for b.Loop() {
		if q.Push(e) != nil {
			q = queue.New(queue.Limits{MergeAfter: 1, MaxEvents: 256})
		}
	}
}
