package join

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/loglines"
	"github.com/sluice-gateway/sluice/internal/redact"
)

// maxLogs is how many logs of one node are read at the same time.
const maxLogs = 16

// logCall is the call of an operator for the log of a node's replica, while the node sends it.
type logCall struct {
	request logRequest
	// ctx ends when nobody wants the log any more.
	ctx context.Context
	// opened is closed when the node has begun to send. in receives what it sends.
	opened chan struct{}
	in     *io.PipeWriter
	// taken is true once the node has opened a stream for it. Guarded by Node.mu.
	taken bool
}

// Restart has the node replace the process of a replica, once the replica has finished its
// requests. A node whose connection breaks before it knows does it when it reconnects. Restart
// fails if the node is not connected, does not know the message, or shall not run the replica.
func (n *Node) Restart(id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.checkOperableLocked("a restart"); err != nil {
		return err
	}
	if !n.assignedIDs[id] {
		return fmt.Errorf("the node %s stops it already", n.name)
	}
	if n.restarts == nil {
		n.restarts = map[string]string{}
	}
	n.restarts[id] = rand.Text()
	n.assignLocked(n.assignment)
	return nil
}

// Suspect tells the node that a replica has left several requests in a row without an answer. It
// does nothing if the node is not connected or shall not run the replica. It does not block.
func (n *Node) Suspect(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.session != nil && n.assignedIDs[id] && !slices.Contains(n.silent, id) {
		n.silent = append(n.silent, id)
		n.session.wakeSender()
	}
}

// nextSilent returns the replicas that Suspect was called for since the last call.
func (n *Node) nextSilent() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	silent := n.silent
	n.silent = nil
	return silent
}

// restartsLocked returns a copy of the restarts of the replicas that are assigned, and forgets the
// others. The session encodes the copy without the lock. n.mu is held.
func (n *Node) restartsLocked() map[string]string {
	maps.DeleteFunc(n.restarts, func(id, _ string) bool { return !n.assignedIDs[id] })
	return maps.Clone(n.restarts)
}

// checkOperableLocked returns why the node cannot do what an operator asks for. n.mu is held.
func (n *Node) checkOperableLocked(what string) error {
	switch {
	case n.lost || n.session == nil || !n.session.hasReported:
		return fmt.Errorf("the node %s does not answer", n.name)
	case n.session.revision < revision:
		return fmt.Errorf("the agent of the node %s speaks version %d.%d of the node protocol, and %s needs %[2]d.%[5]d: "+
			"install this gateway's release of sluice on the node and start its agent again", n.name, protocol, n.session.revision, what, revision)
	}
	return nil
}

// Log writes the wanted lines of the log of a replica to w, without the secrets of its model. A log
// that is followed ends with ctx. The error is that of the node or of w.
func (n *Node) Log(ctx context.Context, w io.Writer, id string, q loglines.Query) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out, in := io.Pipe()
	defer out.Close() //nolint:errcheck // it never fails
	call := &logCall{ctx: ctx, opened: make(chan struct{}), in: in,
		request: logRequest{ID: rand.Text(), Replica: id, Tail: q.Tail, Search: q.Search, Follow: q.Follow}}
	redactor, err := n.ask(call)
	if err != nil {
		return err
	}
	defer n.forget(call)
	select {
	case <-call.opened:
	case <-ctx.Done():
		return nil
	case <-time.After(callTimeout):
		return fmt.Errorf("the node %s has sent no log within %v", n.name, callTimeout)
	}
	defer context.AfterFunc(ctx, func() { _ = out.Close() })()
	// The node has filtered the lines. The gateway does it again, because it trusts no node.
	if err := q.Copy(w, out, redactor); ctx.Err() == nil {
		return err
	}
	return nil
}

// ask has the session send the request of a call. It returns what hides the secrets in the log.
func (n *Node) ask(call *logCall) (*redact.Redactor, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.checkOperableLocked("a log"); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(n.reported, func(r engines.Replica) bool { return r.ID == call.request.Replica })
	if i < 0 {
		return nil, fmt.Errorf("the node %s does not run it any more", n.name)
	}
	if len(n.logs) >= maxLogs {
		return nil, fmt.Errorf("%d logs of the node %s are being read already", maxLogs, n.name)
	}
	if n.logs == nil {
		n.logs = map[string]*logCall{}
	}
	n.logs[call.request.ID] = call
	n.askedLogs = append(n.askedLogs, call.request)
	n.session.wakeSender()
	return n.redactors[n.reported[i].Model], nil
}

// forget drops a call that has ended.
func (n *Node) forget(call *logCall) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.logs, call.request.ID)
	n.askedLogs = slices.DeleteFunc(n.askedLogs, func(r logRequest) bool { return r.ID == call.request.ID })
}

// nextLogs returns the requests for logs that were not sent to the node yet.
func (n *Node) nextLogs() []logRequest {
	n.mu.Lock()
	defer n.mu.Unlock()
	asked := n.askedLogs
	n.askedLogs = nil
	return asked
}

// openLog returns the call that waits for the log with this id, once.
func (n *Node) openLog(id string) *logCall {
	n.mu.Lock()
	defer n.mu.Unlock()
	call := n.logs[id]
	if call == nil || call.taken {
		return nil
	}
	call.taken = true
	return call
}

// receiveLog implements the RPC Log, by which a node sends the log that it was asked for.
func (s *Server) receiveLog(stream grpc.ServerStream) error {
	name, key, ok := caller(stream.Context())
	if !ok {
		return errNoCertificate()
	}
	node := s.nodeByName(name)
	if err := node.checkKey(key); err != nil {
		return err
	}
	var first logPart
	if err := s.receiveFirst(stream.Context(), func() error { return stream.RecvMsg(&first) }); err != nil {
		return err
	}
	call := node.openLog(first.ID)
	if call == nil {
		return status.Error(codes.NotFound, "nobody waits for this log any more")
	}
	close(call.opened)
	done := make(chan struct{})
	// A blocked stream ends only when this function returns. Serve waits for the goroutine.
	s.streamLoops.Go(func() { defer close(done); call.receive(stream, first) })
	select {
	case <-done:
	case <-call.ctx.Done():
	}
	return nil
}

// receive passes on what the node sends, until the stream or the call ends.
func (c *logCall) receive(stream grpc.ServerStream, part logPart) {
	for {
		if part.Error != "" {
			_ = c.in.CloseWithError(errors.New(boundText(part.Error)))
			return
		}
		if _, err := io.WriteString(c.in, part.Text); err != nil {
			return // nobody reads it any more
		}
		part = logPart{}
		if err := stream.RecvMsg(&part); errors.Is(err, io.EOF) {
			_ = c.in.Close()
			return
		} else if err != nil {
			_ = c.in.CloseWithError(fmt.Errorf("the node ends it: %w", withoutGRPC(err)))
			return
		}
	}
}
