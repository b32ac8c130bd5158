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
// stream has its first byte.
func (g *Gateway) OpenStreams(n, tokens int) *Streams {
	s := &Streams{t: g.T}
	s.begun.Add(n)
	opening := make(chan struct{}, openings)
	for i := range n {
		opening <- struct{}{}
		s.group.Go(func() {
			begun := sync.OnceFunc(func() {
				<-opening
				s.begun.Done()
			})
			defer begun()
			if err := g.ReadStream(fmt.Sprint("conversation ", i), tokens, begun); err != nil {
				s.mu.Lock()
				s.faults = append(s.faults, err)
				s.mu.Unlock()
			}
		})
	}
	s.begun.Wait()
	return s
}

// ReadStream reads one stream of the model chat to its end, and returns what is wrong with it. It
// calls begun when the first byte arrives.
func (g *Gateway) ReadStream(text string, tokens int, begun func()) error {
	r, err := g.Open(context.Background(), "/v1/chat/completions", ChatBody("chat", true, tokens, text))
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != 200 {
		b, _ := io.ReadAll(r.Body)
		return errors.New(r.Status + string(b))
	}
	first := make([]byte, 1)
	if _, err := io.ReadFull(r.Body, first); err != nil {
		return err
	}
	begun()
	rest, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	if n := strings.Count(string(rest), `"content":`); n < tokens {
		return fmt.Errorf("only %d of %d tokens", n, tokens)
	}
	return CheckWholeStream(rest)
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
