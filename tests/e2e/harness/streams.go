package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// Streams are chat streams that run at the same time. OpenStreams makes them.
type Streams struct {
	t     *testing.T
	group sync.WaitGroup // one for each stream that runs
	begun sync.WaitGroup // one for each stream without a first byte

	mu     sync.Mutex
	faults []error
}

// openings is how many streams OpenStreams opens at the same time. A gateway refuses requests that
// it cannot decide in time, as thousands at once on a busy machine.
const openings = 100

// OpenStreams opens n streams of that many tokens each, of the model chat. It returns when each
// stream has its first byte. It opens no more streams when one has failed.
func (g *Gateway) OpenStreams(n, tokens int) *Streams {
	return g.openStreams(n, tokens, testutil.Patience)
}

func (g *Gateway) openStreams(n, tokens int, patience time.Duration) *Streams {
	s := &Streams{t: g.T}
	opening := make(chan struct{}, openings)
	for i := range n {
		opening <- struct{}{}
		if s.fault() != nil {
			break
		}
		s.begun.Add(1)
		s.group.Go(func() {
			begun := sync.OnceFunc(func() {
				<-opening
				s.begun.Done()
			})
			defer begun()
			if err := g.readStream(fmt.Sprint("conversation ", i), tokens, patience, begun); err != nil {
				s.mu.Lock()
				s.faults = append(s.faults, err)
				s.mu.Unlock()
			}
		})
	}
	s.begun.Wait()
	return s
}

// fault returns what is wrong with the first stream that failed.
func (s *Streams) fault() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.faults) == 0 {
		return nil
	}
	return s.faults[0]
}

// ReadStream reads one stream of the model chat to its end, and returns what is wrong with it. It
// calls begun when the first byte arrives.
func (g *Gateway) ReadStream(text string, tokens int, begun func()) error {
	return g.readStream(text, tokens, testutil.Patience, begun)
}

// errSilent is what is wrong with a stream of which nothing comes for too long.
var errSilent = errors.New("the stream is silent")

// readStream is ReadStream, with the longest silence before the first byte and between two reads.
func (g *Gateway) readStream(text string, tokens int, patience time.Duration, begun func()) error {
	ctx, giveUp := context.WithCancelCause(context.Background())
	defer giveUp(nil)
	silence := time.AfterFunc(patience, func() { giveUp(errSilent) })
	defer silence.Stop()
	r, err := g.Open(ctx, "/v1/chat/completions", ChatBody("chat", true, tokens, text))
	if err != nil {
		return err
	}
	defer r.Body.Close()
	var all []byte
	for part := make([]byte, 4<<10); ; {
		n, err := r.Body.Read(part)
		if n > 0 {
			silence.Reset(patience)
			all = append(all, part[:n]...)
		}
		if n > 0 && r.StatusCode == http.StatusOK {
			begun()
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", r.Status, all)
	}
	if n := strings.Count(string(all), `"content":`); n < tokens {
		return fmt.Errorf("only %d of %d tokens", n, tokens)
	}
	return CheckWholeStream(all)
}

// FinishAnswers has simulated replicas generate the rest of their answers at once.
func FinishAnswers(t testing.TB, replicas map[string]Replica) {
	t.Helper()
	for id, replica := range replicas {
		r, err := http.Post("http://"+replica.Address+"/sim/pace", "application/json", strings.NewReader(`{"token_interval":"0s"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != 200 {
			t.Fatalf("%s: %s", id, r.Status)
		}
	}
}

// Wait waits until all streams have ended. The test fails if one of them was not whole.
func (s *Streams) Wait() {
	s.t.Helper()
	s.group.Wait()
	if len(s.faults) > 0 {
		s.t.Errorf("%d streams were not whole, the first: %v", len(s.faults), s.faults[0])
	}
}
