package request

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// subscriber has the ids of the requests that it was told of.
type subscriber struct {
	mu  sync.Mutex
	ids []string
}

// told returns the ids so far.
func (e *subscriber) told() []string {
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.ids)
}

// storeWith returns a store that tells a subscriber of the requests that have ended.
func storeWith(delay time.Duration) (*Store, *subscriber) {
	s, e := NewStore(0), new(subscriber)
	s.Subscribe(Subscribers{FinishedDelay: delay, Finished: []func(Summary){func(q Summary) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.ids = append(e.ids, q.ID)
	}}})
	return s, e
}

// end ends a request that Envoy alone has answered.
func end(s *Store, id string) { s.Observe(Entry{RequestID: id, Status: 404, Path: "/v1/x"}) }

func TestFinishedRequestsAreToldTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const delay = 100 * time.Millisecond
		s, e := storeWith(delay)
		expect := func(when string, want ...string) {
			t.Helper()
			if got := e.told(); !slices.Equal(got, want) {
				t.Errorf("%s: %v were told, want %v", when, got, want)
			}
		}
		end(s, "a")
		time.Sleep(delay / 2)
		end(s, "b")
		expect("half of the delay later")
		time.Sleep(delay / 2)
		expect("after the delay of the first", "a", "b")
		end(s, "c")
		s.TellFinished()
		expect("asked to tell", "a", "b", "c")
		time.Sleep(2 * delay)
		end(s, "d")
		time.Sleep(delay)
		expect("after another delay", "a", "b", "c", "d")
	})
}

func TestManyFinishedRequestsDoNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, e := storeWith(time.Hour)
		for n := range tellMany {
			end(s, fmt.Sprint(n))
		}
		if n := len(e.told()); n != tellMany {
			t.Errorf("%d of %d requests were told before the delay", n, tellMany)
		}
		end(s, "last")
		if n := len(e.told()); n != tellMany {
			t.Errorf("%d requests were told", n)
		}
		s.TellFinished()
	})
}

func TestWithoutADelayRequestsAreToldAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, e := storeWith(0)
		end(s, "a")
		if got := e.told(); len(got) != 1 {
			t.Errorf("%v were told", got)
		}
	})
}
