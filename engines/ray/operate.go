package ray

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/internal/loglines"
)

// logInterval is how often a followed log is read. Ray returns a log as a whole.
const logInterval = 2 * time.Second

// restarted stands in the place of the specification of a job that is to be replaced.
const restarted = "restarted by an operator"

// ErrNotWriter means that this gateway does not write to Ray. Another one of the group does, or a
// fault in Status keeps it from that.
var ErrNotWriter = errors.New("another gateway of this installation starts and stops its jobs: ask that one")

// ScaledBy returns the identity of another gateway of the group that decides how many jobs a model
// has. It is empty if this gateway does or nobody is known to.
func (l *Launcher) ScaledBy() string {
	if l.group.mayWrite() {
		return ""
	}
	return l.group.writerName("")
}

// Restart replaces the job of a replica: its successor is started first, as for a change of the
// model. It fails with ErrNotWriter at a gateway that does not write to Ray.
func (l *Launcher) Restart(id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.mayWriteLocked() {
		return ErrNotWriter
	}
	for _, r := range l.replicas {
		if r.ID == id && r.job != "" {
			r.restartJob = r.job
			notify(l.wake)
			return nil
		}
	}
	return fmt.Errorf("the replica %s has no job", id)
}

// Log writes the wanted lines of the log of a replica's job to w. The error is that of Ray or of w.
func (l *Launcher) Log(ctx context.Context, w io.Writer, id string, q loglines.Query) error {
	job, m := l.jobOf(id)
	if job == "" {
		return fmt.Errorf("the replica %s has no job", id)
	}
	text, err := l.client.log(ctx, job)
	if err != nil {
		return err
	}
	whole := strings.LastIndexByte(text, '\n') + 1
	_, err = io.WriteString(w, strings.Join(q.Last(strings.NewReader(text[:whole]), m.redactor()), ""))
	for at := whole; err == nil && q.Follow; at = whole {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(logInterval):
		}
		if text, err = l.client.log(ctx, job); err != nil {
			break
		}
		if whole = strings.LastIndexByte(text, '\n') + 1; whole > at {
			err = q.Copy(w, strings.NewReader(text[at:whole]), m.redactor())
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// jobOf returns the newest job of a replica, and its model. The job is empty if there is none.
func (l *Launcher) jobOf(id string) (string, desiredModel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k, r := range l.replicas {
		if r.ID == id {
			return r.job, l.models[k.model]
		}
	}
	return "", desiredModel{}
}
