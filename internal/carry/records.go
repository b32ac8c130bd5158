package carry

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/internal/request"
)

// The records of the requests that a predecessor carries stay there while the requests run. The
// successor asks for them when an operator does. A predecessor tells its successor of each request
// that has ended, because it does not stay itself.

const (
	// recordsPath is the path at which a predecessor lists its running requests. recordPath begins
	// the path of one of them, which an operator may read or cancel.
	recordsPath = "/records"
	recordPath  = recordsPath + "/"
)

// records are some running requests of a process, and the number of all.
type records struct {
	Requests []request.Summary
	Running  int
}

// recordsHandler answers the questions of a successor about the requests of this process.
func recordsHandler(s *request.Store) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+recordsPath, func(w http.ResponseWriter, r *http.Request) {
		limit, _ := strconv.Atoi(r.URL.Query().Get("limit")) // 0 means all
		all, running := s.List(limit)
		all = slices.DeleteFunc(all, func(q request.Summary) bool { return q.State == request.Done })
		_ = json.NewEncoder(w).Encode(records{all, running})
	})
	mux.HandleFunc("GET "+recordPath+"{id}", func(w http.ResponseWriter, r *http.Request) {
		found, ok := s.Find(r.PathValue("id"))
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_ = json.NewEncoder(w).Encode(found)
	})
	mux.HandleFunc("DELETE "+recordPath+"{id}", func(w http.ResponseWriter, r *http.Request) {
		switch err := s.Cancel(r.PathValue("id")); {
		case errors.Is(err, request.ErrNotRunning):
			w.WriteHeader(http.StatusNotFound)
		case err != nil:
			w.WriteHeader(http.StatusConflict)
		}
	})
	return mux
}

// Ended tells the successor of a request that has ended. counts says that the successor is to count
// it in its metrics, because nobody can ask this process for its own.
func (l *Link) Ended(q request.Summary, counts bool) {
	if l == nil {
		return
	}
	l.send(message{Ended: textOf(q), Counts: counts})
}

// Used tells the successor of tokens that this process counts apart from the end of a request. The
// successor is to count them, too.
func (l *Link) Used(q request.Summary) {
	if l == nil {
		return
	}
	l.send(message{Used: textOf(q)})
}

// Retried tells the successor of an attempt that was repeated at another replica of a model, which
// the successor is to count in its metrics.
func (l *Link) Retried(model, tenant, reason string) {
	if l == nil {
		return
	}
	l.send(message{Retried: &retry{model, tenant, reason}})
}

func textOf(q request.Summary) json.RawMessage {
	text, err := json.Marshal(q)
	if err != nil { // it has text, numbers and times alone
		panic(err)
	}
	return text
}

// flushInterval is how often Flush looks.
const flushInterval = 5 * time.Millisecond

// Flush waits until the successor was sent everything, at most for timeout.
func (l *Link) Flush(timeout time.Duration) {
	for end := time.Now().Add(timeout); time.Now().Before(end); time.Sleep(flushInterval) {
		l.mu.Lock()
		sent := len(l.unsent) == 0 && !l.sending
		l.mu.Unlock()
		if sent {
			return
		}
	}
}

// readSummary reads what a predecessor tells of a request. A predecessor of another release may
// tell what this one cannot read.
func readSummary(text json.RawMessage) (q request.Summary, ok bool) {
	err := json.Unmarshal(text, &q)
	return q, err == nil
}

// Requests returns the running requests of all predecessors, the newest first, and their number. At
// most limit of each predecessor are returned; 0 means all.
func (s *Server) Requests(limit int) (all []request.Summary, running int) {
	var mu sync.Mutex
	var asked sync.WaitGroup
	for _, p := range s.Predecessors() {
		asked.Go(func() {
			var found records
			if p.ask(context.Background(), http.MethodGet, recordsPath+"?limit="+strconv.Itoa(limit), &found) != http.StatusOK {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			all, running = append(all, found.Requests...), running+found.Running
		})
	}
	asked.Wait()
	slices.SortStableFunc(all, func(a, b request.Summary) int { return b.Started.Compare(a.Started) })
	return all, running
}

// Request returns a request of a predecessor by its id.
func (s *Server) Request(id string) (found request.Detail, ok bool) {
	for _, p := range s.Predecessors() {
		if id != "" && p.ask(context.Background(), http.MethodGet, recordPath+url.PathEscape(id), &found) == http.StatusOK {
			return found, true
		}
	}
	return request.Detail{}, false
}

// Cancel cancels a running request of a predecessor. The error is as of request.Store.Cancel.
func (s *Server) Cancel(id string) error {
	err := request.ErrNotRunning
	for _, p := range s.Predecessors() {
		switch p.ask(context.Background(), http.MethodDelete, recordPath+url.PathEscape(id), nil) {
		case http.StatusOK:
			return nil
		case http.StatusConflict:
			err = request.ErrNotHeld
		}
	}
	return err
}

// ask has a predecessor answer a question about its requests, at most for askTimeout. The answer is
// read into to, unless that is nil. The status is 0 if the process does not answer.
func (p Process) ask(ctx context.Context, method, path string, to any) (status int) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://sluice"+path, http.NoBody)
	if err != nil {
		return 0
	}
	answer, err := newTransport("unix", p.Socket).RoundTrip(r)
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusOK && to != nil && json.NewDecoder(answer.Body).Decode(to) != nil {
		return 0
	}
	return answer.StatusCode
}
