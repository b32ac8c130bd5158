package admin

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/loglines"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// The number of lines of a log that are shown without and at most with ?tail, and the length of the
// longest ?search in bytes.
const (
	defaultTail = 200
	maxTail     = 10_000
	maxSearch   = 200
)

// connectedAfter is how long the answer to a call that follows a log waits for its first line.
const connectedAfter = 300 * time.Millisecond

// replicaLog answers with lines of a replica's log.
func (h *handler) replicaLog(w http.ResponseWriter, r *http.Request, replica engines.Replica) {
	q, fault := logQuery(r)
	if fault != nil {
		writeError(w, fault)
		return
	}
	if r.Method == http.MethodHead { // there is nothing to follow, and the connection would be held for nothing
		q.Follow = false
	}
	lines := &logWriter{w: w, flush: q.Follow}
	if q.Follow { // the client of an empty log learns that it is connected
		defer time.AfterFunc(connectedAfter, lines.begin).Stop()
	}
	err := h.Actions.Log(r.Context(), lines, replica, q)
	switch {
	case err == nil:
		lines.begin()
	case !lines.end():
		writeError(w, refusal(http.StatusConflict, "There is no log to show: "+err.Error()+"."))
	case r.Context().Err() == nil:
		fmt.Fprintf(w, "sluice: the log breaks off: %v\n", err)
	}
	lines.end()
}

// logQuery reads the query of a call for a log.
func logQuery(r *http.Request) (loglines.Query, *openai.Error) {
	values := r.URL.Query()
	q := loglines.Query{Tail: defaultTail, Search: values.Get("search")}
	if s := values.Get("tail"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 || n > maxTail {
			return q, badParameter("tail", fmt.Sprintf("tail is %q: it must be a number from 0 to %d.", s, maxTail))
		}
		q.Tail = n
	}
	if s := values.Get("follow"); s != "" {
		follow, err := strconv.ParseBool(s)
		if err != nil {
			return q, badParameter("follow", fmt.Sprintf("follow is %q: it must be true or false.", s))
		}
		q.Follow = follow
	}
	if len(q.Search) > maxSearch {
		return q, badParameter("search", fmt.Sprintf("search has %d bytes, more than %d.", len(q.Search), maxSearch))
	}
	return q, nil
}

func badParameter(name, message string) *openai.Error {
	return &openai.Error{Code: openai.CodeInvalidRequest, Param: name, Message: message}
}

// logWriter writes a log as the body of a response.
type logWriter struct {
	w http.ResponseWriter
	// flush: each write is sent at once.
	flush bool

	mu sync.Mutex
	// begun: the header is sent. ended: nothing may be sent any more; guarded by mu
	begun, ended bool
}

// begin sends the header of the response, unless it was sent or the response has ended.
func (l *logWriter) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beginLocked()
}

// end ends the response. It returns whether the header was sent.
func (l *logWriter) end() (begun bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	return l.begun
}

func (l *logWriter) beginLocked() {
	if l.begun || l.ended {
		return
	}
	l.begun = true
	l.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	l.w.WriteHeader(http.StatusOK)
	l.send()
}

// send sends what was written, for a log that is followed.
func (l *logWriter) send() {
	if l.flush {
		_ = http.NewResponseController(l.w).Flush() // the next write reports that the client has left
	}
}

// Write implements io.Writer.
func (l *logWriter) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beginLocked()
	n, err := l.w.Write(p)
	l.send()
	return n, err
}
