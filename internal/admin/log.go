package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
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

// maxLogWrite is how many bytes of a log that is followed are written at once, in writeTimeout.
const maxLogWrite = 64 << 10

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
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	lines := &logWriter{w: w}
	if q.Follow {
		lines.admitted = func() bool { return h.stillAdmits(r, cancel) }
		go whileAdmitted(ctx, lines.admitted)
		defer time.AfterFunc(connectedAfter, lines.begin).Stop() // the client of an empty log learns that it is connected
	}
	err := h.Actions.Log(ctx, lines, replica, q)
	switch {
	case err == nil:
		lines.begin()
	case !lines.end():
		writeError(w, refusal(http.StatusConflict, "There is no log to show: "+err.Error()+"."))
	case ctx.Err() == nil:
		fmt.Fprintf(w, "sluice: the log breaks off: %v\n", err)
	}
	lines.end()
}

// stillAdmits reports whether the caller may still read what it was admitted to. Otherwise it calls
// end.
func (h *handler) stillAdmits(r *http.Request, end func()) bool {
	_, fault := h.admit(r)
	if fault != nil {
		end()
	}
	return fault == nil
}

// whileAdmitted asks whether the client of a quiet log is still admitted, until it is not or ctx
// ends.
func whileAdmitted(ctx context.Context, admitted func() bool) {
	tick := time.NewTicker(heartbeatInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if !admitted() {
				return
			}
		}
	}
}

// logQuery reads the query of a call for a log.
func logQuery(r *http.Request) (loglines.Query, *openai.Error) {
	values := r.URL.Query()
	q := loglines.Query{Tail: defaultTail, Search: values.Get("search")}
	if s := values.Get("tail"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 || n > maxTail {
			return q, badParam("tail", fmt.Sprintf("tail is %q: it must be a number from 0 to %d.", s, maxTail))
		}
		q.Tail = n
	}
	if s := values.Get("follow"); s != "" {
		follow, err := strconv.ParseBool(s)
		if err != nil {
			return q, badParam("follow", fmt.Sprintf("follow is %q: it must be true or false.", s))
		}
		q.Follow = follow
	}
	if len(q.Search) > maxSearch {
		return q, badParam("search", fmt.Sprintf("search has %d bytes, more than %d.", len(q.Search), maxSearch))
	}
	return q, nil
}

// logWriter writes a log as the body of a response.
type logWriter struct {
	w http.ResponseWriter
	// admitted reports whether the client of a log that is followed may have more. nil: the log is
	// not followed.
	admitted func() bool

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
	if l.admitted != nil {
		_ = http.NewResponseController(l.w).Flush() // the next write reports that the client has left
	}
}

// errNotAdmitted ends the log of a client that may not read it any more.
var errNotAdmitted = errors.New("the client may not read it any more")

func (l *logWriter) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.admitted == nil {
		l.beginLocked()
		return l.w.Write(p)
	}
	written := 0
	for part := range slices.Chunk(p, maxLogWrite) {
		n, err := l.writeFollowedLocked(part)
		written += n
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// writeFollowedLocked writes a part of a log that is followed, and sends it at once.
func (l *logWriter) writeFollowedLocked(part []byte) (int, error) {
	if !l.admitted() {
		return 0, errNotAdmitted
	}
	_ = http.NewResponseController(l.w).SetWriteDeadline(time.Now().Add(writeTimeout)) // a test's writer has none
	l.beginLocked()
	n, err := l.w.Write(part)
	l.send()
	return n, err
}
