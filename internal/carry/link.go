package carry

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/dispatch"
)

const (
	// reconnectPause is the time between two attempts to reach the successor.
	reconnectPause = 20 * time.Millisecond
	// writeTimeout is how long the successor may take to read what it is told.
	writeTimeout = 10 * time.Second
)

// Link tells the successor what this process holds. It is the watcher of the dispatcher's tickets.
// NewLink makes it, and Run connects it. Ended, Used and Retried of a nil Link tell nobody: there
// is no successor yet.
type Link struct {
	// Begun is told of the first bytes of the response of a request that this process may hold. It
	// is set before Run, and must be quick. nil: nobody is told.
	Begun func(id string, begin []byte)

	socket string
	self   Process
	drain  func(time.Duration)
	log    *zap.Logger
	// changed wakes the goroutine that writes. It has room for one element.
	changed chan struct{}

	mu sync.Mutex
	// refs are the numbers of the tickets that are held, held what is told of them; guarded by mu
	refs map[*dispatch.Ticket]uint64
	held map[uint64]dispatch.HeldRequest
	last uint64
	// unsent are the messages that the successor has not been sent yet; guarded by mu
	unsent []outgoing
	// sending says that messages are being sent; guarded by mu
	sending bool
}

// outgoing is a message for the successor.
type outgoing struct {
	message
	// of is the request of a Correct.
	of dispatch.HeldRequest
}

var _ dispatch.TicketWatcher = (*Link)(nil)

// NewLink returns a Link to the process that listens on the socket. drain is called when that
// process says that the gateway stops; it must be quick.
func NewLink(socket string, self Process, drain func(time.Duration), log *zap.Logger) *Link {
	return &Link{socket: socket, self: self, drain: drain, log: log, changed: make(chan struct{}, 1),
		refs: map[*dispatch.Ticket]uint64{}, held: map[uint64]dispatch.HeldRequest{}}
}

// Holds implements dispatch.TicketWatcher.
func (l *Link) Holds(t *dispatch.Ticket, r dispatch.HeldRequest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ref, ok := l.refs[t]
	if !ok {
		l.last++
		ref = l.last
		l.refs[t] = ref
	}
	l.held[ref] = r
	l.sendLocked(outgoing{message: message{Hold: newHold(ref, r)}})
}

// Corrected implements dispatch.TicketWatcher.
func (l *Link) Corrected(t *dispatch.Ticket, r dispatch.HeldRequest, tokens int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ref, held := l.refs[t]
	if !held {
		l.last++
		ref = l.last
	}
	cost := outgoing{message{Correct: &correction{ref, tokens}}, r}
	if held {
		l.sendLocked(cost)
	} else {
		l.sendLocked(cost.released()...)
	}
}

// released returns what tells the cost of a request that the successor does not count.
func (o outgoing) released() []outgoing {
	ref := o.Correct.Ref
	o.of.Task = "" // the next request of the task may run already
	return []outgoing{{message: message{Hold: newHold(ref, o.of)}}, o, {message: message{Release: ref}}}
}

// Released implements dispatch.TicketWatcher.
func (l *Link) Released(t *dispatch.Ticket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ref, ok := l.refs[t]; ok {
		delete(l.refs, t)
		delete(l.held, ref)
		l.sendLocked(outgoing{message: message{Release: ref}})
	}
}

// Learned tells the successor which replica has responses that this process has learned.
func (l *Link) Learned(r dispatch.ReplicaResponses) { l.send(message{Learned: &r}) }

func (l *Link) send(m message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sendLocked(outgoing{message: m})
}

// sendLocked queues messages. l.mu is held.
func (l *Link) sendLocked(all ...outgoing) {
	l.unsent = append(l.unsent, all...)
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// Run keeps the successor informed until ctx ends. It connects again whenever the connection ends,
// which happens when the successor is replaced or is gone. Run returns nil.
func (l *Link) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", l.socket)
		if err == nil {
			err = l.serve(ctx, conn)
		}
		if ctx.Err() == nil {
			l.log.Debug("successor not connected", zap.Error(err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(reconnectPause):
		}
	}
	return nil
}

// serve tells the successor everything over one connection, and then what changes.
func (l *Link) serve(ctx context.Context, conn net.Conn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	defer conn.Close()
	var reader sync.WaitGroup
	defer reader.Wait()
	defer conn.Close() // before the wait for the reader
	reader.Go(func() {
		defer cancel()
		l.readOrders(conn)
	})
	out := json.NewEncoder(conn)
	for all := l.everything(); ; all = l.takeUnsent() {
		for i := range all {
			if err := conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
				l.putBack(all[i:])
				return err
			}
			if err := out.Encode(&all[i].message); err != nil {
				l.putBack(all[i:])
				return err
			}
		}
		l.sent()
		select {
		case <-ctx.Done():
			return errors.New("the connection has ended")
		case <-l.changed:
		}
	}
}

// readOrders does what the successor says until the connection ends.
func (l *Link) readOrders(conn net.Conn) {
	in := json.NewDecoder(conn)
	for {
		var o order
		if in.Decode(&o) != nil {
			return
		}
		if o.Drain != nil {
			l.drain(*o.Drain)
		}
		if o.Begun != nil && l.Begun != nil {
			l.Begun(o.Begun.ID, o.Begun.Bytes)
		}
	}
}

// everything returns what a successor must be told that knows nothing yet. That is the requests
// that are held, and the costs and the responses that no successor has been told.
func (l *Link) everything() []outgoing {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := []outgoing{{message: message{Hello: &l.self}}}
	for ref, r := range l.held {
		all = append(all, outgoing{message: message{Hold: newHold(ref, r)}})
	}
	for _, o := range l.unsent {
		switch {
		case o.Learned != nil, o.Ended != nil, o.Used != nil, o.Retried != nil:
			all = append(all, o)
		case o.Correct == nil:
		case l.isHeldLocked(o.Correct.Ref):
			all = append(all, o)
		default:
			all = append(all, o.released()...)
		}
	}
	l.unsent, l.sending = nil, true
	return append(all, outgoing{message: message{Synced: true}})
}

// isHeldLocked reports whether the request of this number is held. l.mu is held.
func (l *Link) isHeldLocked(ref uint64) bool {
	_, held := l.held[ref]
	return held
}

// putBack keeps messages for the next connection that could not be sent.
func (l *Link) putBack(all []outgoing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsent = append(all, l.unsent...)
}

func (l *Link) takeUnsent() []outgoing {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.unsent
	l.unsent, l.sending = nil, true
	return all
}

// sent says that everything was sent that was taken to be sent.
func (l *Link) sent() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sending = false
}

// Held returns the number of requests that this process holds.
func (l *Link) Held() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.held)
}
