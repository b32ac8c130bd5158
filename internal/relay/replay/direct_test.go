package replay_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluice-gateway/sluice/internal/relay/queue"
	"github.com/sluice-gateway/sluice/internal/relay/replay"
)

// moody is a client that takes everything at once, or only a part of it, or nothing.
type moody struct {
	l *replay.Listener
	// room is how many bytes the client takes without waiting
	room atomic.Int64
	// Guarded by the listener's lock.
	gathered, heard strings.Builder
	next            uint64
	short           int
	fault           error
}

func (m *moody) got(raw []byte, number uint64) {
	if number != m.next {
		m.fault = errors.Join(m.fault, fmt.Errorf("event %d came when %d was due", number, m.next))
	}
	m.next = number + 1
	m.gathered.Write(raw)
}

// Take implements replay.Direct.
func (m *moody) Take(raw []byte, number uint64) {
	m.got(raw, number)
	m.short++
}

// Flush implements replay.Direct.
func (m *moody) Flush() (whole bool) {
	text := m.gathered.String()
	n := min(int64(len(text)), m.room.Load())
	m.room.Add(-n)
	m.heard.WriteString(text[:n])
	m.gathered.Reset()
	m.gathered.WriteString(text[n:])
	return int(n) == len(text)
}

// all sends everything: who does that waits for the client.
func (m *moody) all() {
	m.heard.WriteString(m.gathered.String())
	m.gathered.Reset()
}

// follow is the listener's goroutine. It returns what the fan was ended with.
func (m *moody) follow(random *rand.Rand) error {
	for {
		<-m.l.Ready()
		if random.IntN(4) == 0 {
			m.l.Lock() // somebody else has something to say, and no events to take
			m.all()
			m.l.Unlock()
		}
		if err := m.take(); err != nil {
			return err
		}
	}
}

func (m *moody) take() error {
	m.l.Lock()
	defer m.l.Unlock()
	for {
		raw, number, err := m.l.Pop(nil)
		switch {
		case err == nil:
			m.got(raw, number)
		case errors.Is(err, queue.ErrEmpty):
			m.all()
			m.l.CaughtUp()
			return nil
		default:
			m.all()
			return err
		}
	}
}

// A client gets every event once and in order, however often it falls behind and catches up, and whether it came at the beginning or later.
func TestShortWayLosesNothing(t *testing.T) {
	t.Parallel()
	runs := 300
	if testing.Short() {
		runs = 50
	}
	const n = 400
	all := numbered(n)
	list := events(all)
	var short, long int
	for seed := range runs {
		random := rand.New(rand.NewPCG(uint64(seed), 1))
		limits := replay.Limits{Queue: queue.Limits{Hard: n + 1}}
		late := 0
		if seed%2 == 0 {
			limits.Keep, late = kept.Keep, random.IntN(n/2)
		}
		f := replay.NewFan(limits)
		for _, e := range list[:late] {
			if err := f.Push(e); err != nil {
				t.Fatal(err)
			}
		}
		m := &moody{l: attach(t, f, -1)}
		m.l.Shorten(m)
		var following sync.WaitGroup
		var ended error
		following.Go(func() { ended = m.follow(rand.New(rand.NewPCG(uint64(seed), 2))) })
		for i, e := range list[late:] {
			m.room.Store(int64(random.IntN(400)))
			if err := f.Push(e); err != nil {
				t.Fatal(err)
			}
			if random.IntN(3) == 0 || late+i == n-1 {
				f.Flush()
			}
			if random.IntN(4) == 0 {
				runtime.Gosched()
			}
		}
		f.End(nil)
		following.Wait()
		if m.heard.String() != all || m.fault != nil || !errors.Is(ended, io.EOF) {
			t.Fatalf("seed %d: %d bytes of %d were heard, %v, %v", seed, m.heard.Len(), len(all), m.fault, ended)
		}
		short, long = short+m.short, long+n-m.short
	}
	t.Logf("%d events went the short way, %d waited", short, long)
	if short == 0 || long == 0 {
		t.Errorf("%d events went the short way, %d waited: one was not tried", short, long)
	}
}

// After Detach nothing is handed over, and who has come back gets the rest.
func TestShortWayEnds(t *testing.T) {
	t.Parallel()
	f := replay.NewFan(kept)
	list := events(numbered(4))
	m := &moody{l: attach(t, f, -1)}
	m.l.Shorten(m)
	m.room.Store(1 << 20)
	for i, e := range list {
		if i == 2 {
			m.l.Detach()
		}
		if err := f.Push(e); err != nil {
			t.Fatal(err)
		}
		f.Flush()
	}
	if want := numbered(2); m.heard.String() != want || m.gathered.Len() > 0 {
		t.Errorf("heard %q, want %q", m.heard.String(), want)
	}
	rest, _, _ := popAll(attach(t, f, 1))
	if want := strings.TrimPrefix(numbered(4), numbered(2)); rest != want {
		t.Errorf("who comes back gets %q, want %q", rest, want)
	}
}
