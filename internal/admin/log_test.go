package admin

import (
	"context"
	"io"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/loglines"
)

// followedLog is Actions with a log whose lines come from a channel.
type followedLog struct {
	fakeActions
	lines chan string
}

func (f *followedLog) Log(ctx context.Context, w io.Writer, _ engines.Replica, _ loglines.Query) error {
	for {
		select {
		case line := <-f.lines:
			if _, err := io.WriteString(w, line); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// timedRecorder is a response whose deadlines are kept.
type timedRecorder struct {
	*httptest.ResponseRecorder
	deadline time.Time
}

// SetWriteDeadline makes it one that http.ResponseController knows.
func (r *timedRecorder) SetWriteDeadline(at time.Time) error {
	r.deadline = at
	return nil
}

// TestX12_AFollowedLogEndsWithTheToken: a client whose token is removed gets no further line, and
// its log ends although the log has none. A client has a bounded time to read each line.
func TestX12_AFollowedLogEndsWithTheToken(t *testing.T) {
	for name, next := range map[string]string{"a line": "two\n", "quiet": ""} {
		synctest.Test(t, func(t *testing.T) {
			var access atomic.Pointer[Access]
			access.Store(newAccess())
			c, log := newConfig(), &followedLog{lines: make(chan string)}
			c.Actions, c.Access = log, access.Load
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			r := httptest.NewRequestWithContext(ctx, "GET", "http://localhost:9090/api/v1/replicas/chat-0/log?follow=true", nil)
			r.Header.Set("Authorization", "Bearer "+viewerToken)
			w, ended := &timedRecorder{ResponseRecorder: httptest.NewRecorder()}, atomic.Bool{}
			go func() {
				New(c).ServeHTTP(w, r)
				ended.Store(true)
			}()
			time.Sleep(3 * heartbeatInterval)
			log.lines <- strings.Repeat("x", 3*maxLogWrite) + "\n"
			synctest.Wait()
			if left := time.Until(w.deadline); ended.Load() || w.Body.Len() != 3*maxLogWrite+1 || left != writeTimeout {
				t.Fatalf("%s: with its token the client got %d bytes, and has %v to read", name, w.Body.Len(), left)
			}
			access.Store(&Access{})
			if next != "" {
				log.lines <- next
				synctest.Wait()
			} else {
				time.Sleep(heartbeatInterval)
				synctest.Wait()
			}
			if body := w.Body.String(); !ended.Load() || strings.TrimLeft(body, "x") != "\n" {
				t.Errorf("%s: ended %v, with %q", name, ended.Load(), strings.TrimLeft(body, "x"))
			}
		})
	}
}
