package frames

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/sluice-gateway/sluice/internal/nonblock"
	"github.com/sluice-gateway/sluice/internal/outgoing"
	"github.com/sluice-gateway/sluice/internal/request"
)

const (
	// bufferSize is the least size of a buffer that a reader makes.
	bufferSize = 64 << 10
	// restSize is the least size of the rest of a buffer that a reader takes over.
	restSize = 16 << 10
	// keptSize is the greatest size of a buffer that a reader keeps after a large frame. The reader
	// gives the buffer back when no frame has needed it for keptTime, which it notices within twice
	// that time.
	keptSize = 1 << 20
	keptTime = 10 * time.Second
	// maxQueue is how many bytes may wait for a worker that does not read, without the bodies of
	// requests. The connection of such a worker is closed.
	maxQueue = 16 << 20
	// maxObserved is how much of a response is read for its id. The filter sends as much at most.
	maxObserved = 64 << 10
	// drainTime bounds how long the last frames of a broken connection are read. A busy machine
	// takes long for many of them.
	drainTime = time.Second
	// refusalTime bounds how long a filter of another version may take to close its connection.
	refusalTime = time.Second
)

// conn is the connection of one worker of an Envoy.
//
// One goroutine at a time is the reader: it reads frames and has requests decided. When a decision
// is about to block, another goroutine becomes the reader, and the first one ends with its request.
// So a request costs no goroutine unless it waits.
type conn struct {
	server *Server
	socket net.Conn
	// pid is the process of the filter's Envoy; 0: not known.
	pid int
	// number orders the connections of the server as they were accepted. Server.start sets it.
	number uint64
	// worker is whose connection it is. It is set by Hello. Guarded by Server.mu.
	worker worker
	// failed has one caller of fail end the connection. Others wait for it. life ends then, by end.
	failed sync.Once
	life   context.Context
	end    context.CancelFunc
	// draining means that only what the filter tells of the end of requests is still read.
	draining atomic.Bool

	// Only the reader uses the fields down to mu.

	// input reads the socket.
	input io.Reader
	// greeted means that Hello has come.
	greeted bool
	// passed is the file that came with Hello, until Hello is handled.
	passed *os.File
	// words are the texts of the records of before.
	words request.Words

	// mu guards the fields below.
	mu sync.Mutex
	// live has the requests that have not ended, by their ids.
	live map[uint64]*exchange
	// Queue is the write side.
	outgoing.Queue
	// inlet is where answers are written, if it is not the socket.
	inlet net.Conn
	// shared is the memory of the filter. It is nil if the connection has none. The reader sets it,
	// when Hello comes, so that it alone reads it without mu.
	shared *shared
}

func newConn(s *Server, socket net.Conn) *conn {
	c := &conn{server: s, socket: socket, pid: nonblock.PeerPID(socket), input: nonblock.ReaderOf(socket), live: map[uint64]*exchange{}}
	c.life, c.end = context.WithCancel(context.Background())
	c.Queue = outgoing.New(&c.mu, socket, maxQueue)
	return c
}

// worker is one worker thread of an Envoy.
type worker struct {
	index    uint32
	instance uint64
}

// reader is the goroutine that reads a connection, with what it has read.
type reader struct {
	*conn
	buffer []byte
	// The bytes from begin to end are not parsed yet.
	begin, end int
	// timed means that the deadline of the socket tells when keptTime has passed. needed means that
	// a frame has needed a large buffer since then, and unneeded that none has needed it until the
	// deadline.
	timed, needed, unneeded bool
	// gone means that another goroutine reads. The bytes before begin then belong to the request
	// that waits, and the other goroutine has the rest of the buffer or a copy of it.
	gone bool
}

// read reads frames until the connection ends, or until another goroutine reads.
func (r *reader) read() {
	for {
		if err := r.frames(); err != nil {
			r.dropPassed()
			r.fail(err)
			return
		}
		if r.gone {
			r.flushApart()
			return
		}
		r.flushApart()
		r.makeRoom()
		n, err := r.receive(r.buffer[r.end:])
		if r.end += n; n == 0 && err != nil && !r.expired(err) {
			r.dropPassed()
			r.fail(err)
			return
		}
	}
}

// receive reads from the socket. A file that comes before Hello is handled is kept for it.
func (r *reader) receive(buffer []byte) (int, error) {
	socket, ok := r.socket.(*net.UnixConn)
	if r.greeted || !ok {
		return r.input.Read(buffer)
	}
	oob := make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := socket.ReadMsgUnix(buffer, oob)
	if oobn > 0 {
		r.dropPassed() // the filter passes only one
		r.passed = passedFile(oob[:oobn])
	}
	return n, err
}

// dropPassed closes the file that came before Hello was handled.
func (r *reader) dropPassed() {
	if r.passed != nil {
		_ = r.passed.Close()
		r.passed = nil
	}
}

// expired handles the error of a read. It returns whether the error is only that keptTime has
// passed.
func (r *reader) expired(err error) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) || r.draining.Load() {
		return false
	}
	_ = r.socket.SetReadDeadline(time.Time{}) // an error shows at the next read
	r.timed, r.unneeded = false, !r.needed
	return true
}

// frames handles the frames that are there as a whole.
func (r *reader) frames() error {
	for !r.gone && r.end-r.begin >= headSize {
		h := readHead(r.buffer[r.begin:])
		if int64(h.length) > r.server.maxPayload() {
			return fmt.Errorf("%w: %d bytes", errMalformed, h.length)
		}
		size := headSize + int(h.length)
		r.needed = r.needed || size > bufferSize
		if r.end-r.begin < size {
			return nil
		}
		content := r.buffer[r.begin+headSize : r.begin+size : r.begin+size]
		r.begin += size
		if err := r.frame(h, content); err != nil {
			return err
		}
	}
	return nil
}

// makeRoom moves the begun frame to the front of a buffer that can hold all of it.
func (r *reader) makeRoom() {
	begun := r.buffer[r.begin:r.end]
	size := 0
	if len(begun) >= headSize {
		size = headSize + int(readHead(begun).length)
	}
	need := max(bufferSize, size)
	large := len(r.buffer) > keptSize || r.unneeded
	r.unneeded = false
	if size > len(r.buffer) || large && need < len(r.buffer) {
		other := make([]byte, need)
		copy(other, begun)
		r.buffer = other
	} else if r.begin > 0 {
		copy(r.buffer, begun)
	}
	r.begin, r.end = 0, len(begun)
	if len(r.buffer) > bufferSize && !r.timed {
		r.timed, r.needed = true, false
		_ = r.socket.SetReadDeadline(time.Now().Add(keptTime)) // an error shows at the next read
	}
}

// handOver makes another goroutine the reader. That one goes on in the rest of the buffer, behind
// the request that waits, if enough is left of it. So requests that wait share a buffer. A large
// buffer is not shared, because a small request in it would keep all of it.
func (r *reader) handOver() {
	if r.gone {
		return
	}
	r.gone = true
	next := &reader{conn: r.conn, buffer: r.buffer[r.begin:], end: r.end - r.begin}
	if len(r.buffer) > bufferSize || len(next.buffer) < restSize {
		next.buffer = make([]byte, max(bufferSize, next.end))
		copy(next.buffer, r.buffer[r.begin:r.end])
	}
	r.flushApart()
	r.server.running.Go(next.read)
}

func (r *reader) frame(h head, content []byte) error {
	p := payload{rest: content}
	if !r.greeted {
		return r.hello(h, &p)
	}
	if (h.kind == kindHeaders || h.kind == kindBody || h.kind == kindShared) && r.draining.Load() {
		return nil // Envoy has given the request up
	}
	switch h.kind {
	case kindHeaders:
		r.headers(h, &p)
	case kindBody:
		r.body(h.id, content)
	case kindShared:
		r.placed(h.id, &p)
	case kindEnd:
		r.ended(h.id, &p)
	case kindFirst:
		r.first(h.id, content)
	case kindLive:
		r.adopt(h.id, &p)
	default:
		return fmt.Errorf("%w: type %d", errMalformed, h.kind)
	}
	if p.bad {
		return fmt.Errorf("%w: type %d", errMalformed, h.kind)
	}
	return nil
}

// hello handles the first frame.
func (r *reader) hello(h head, p *payload) error {
	version := p.uint32()
	from := worker{index: p.uint32(), instance: p.uint64()}
	defer r.dropPassed() // the memory stays mapped
	if h.kind != kindHello || p.bad {
		return fmt.Errorf("%w: the first one is of type %d", errMalformed, h.kind)
	}
	if version != Version {
		if r.server.OnVersion != nil {
			r.server.OnVersion(r.pid, version)
		}
		_ = r.Add(appendRefusal) // the connection ends anyway
		r.Flush()
		r.awaitClose()
		return fmt.Errorf("the filter speaks version %d, the gateway version %d: %w", version, Version, net.ErrClosed) // OnVersion is told
	}
	r.greeted = true
	shares := r.share(r.passed, p.uint32())
	number := p.uint64()
	if p.bad {
		return fmt.Errorf("%w: Hello", errMalformed)
	}
	r.server.replace(r.conn, from)
	err := r.Add(func(out []byte) []byte {
		return appendWelcome(out, uint32(r.server.Patience.Milliseconds()), shares)
	})
	r.Flush() // before an inlet takes what waits: the worker may have one already
	if r.server.Inlets != nil && r.server.Inlets(r.pid) != "" {
		r.server.running.Go(func() { r.server.join(r.conn, from, number) })
	}
	return err
}

// awaitClose reads what a filter of another version still sends, until the filter closes the
// connection. If the gateway closed it first, the filter could fail to send a frame, and would give
// the connection up before it has read that it is refused.
func (r *reader) awaitClose() {
	_ = r.socket.SetReadDeadline(time.Now().Add(refusalTime)) // an error shows at the read
	_, _ = io.Copy(io.Discard, r.socket)                      // the connection ends anyway
}

// share maps the filter's memory. It returns whether the filter may place bodies there.
func (r *reader) share(file *os.File, blocks uint32) bool {
	if file == nil || blocks == 0 {
		return false
	}
	s, err := openShared(file, blocks)
	if err != nil {
		r.server.Log.Warn("bodies come by the socket, which takes more CPU", zap.Error(err))
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Broken {
		s.leave()
		return false
	}
	r.shared = s
	return true
}

// headers opens the exchange of a request.
func (r *reader) headers(h head, p *payload) {
	x := newExchange(r, h.id)
	p.pairs(x.Head().Add)
	if p.bad = p.bad || len(p.rest) > 0; p.bad {
		x.end()
		return
	}
	if !r.enter(h.id, x) {
		p.bad = true
		x.end()
		return
	}
	x.work(r, func() {
		if r.server.Retired() {
			x.again()
			return
		}
		x.headers(h.flags&flagBodyless != 0)
	})
}

// body has a request decided.
func (r *reader) body(id uint64, content []byte) {
	x := r.find(id)
	if x == nil {
		return // it has ended
	}
	if x.keep(content) {
		return
	}
	x.work(r, func() { x.body(content) })
}

// placed has a request decided whose body is in shared memory.
func (r *reader) placed(id uint64, p *payload) {
	first, length := p.uint32(), p.uint32()
	memory := r.shared // only this goroutine has set it
	if p.bad = p.bad || len(p.rest) > 0 || memory == nil || int64(length) > r.server.maxPayload(); p.bad {
		return
	}
	content := memory.take(first, length)
	if content == nil {
		p.bad = true
		return
	}
	defer memory.release(first, length)
	r.body(id, content)
}

// ended tells that a request has ended. If the request is known on no connection, its own one has
// broken before the filter could send the End.
func (r *reader) ended(id uint64, p *payload) {
	e := entryOf(p, &r.words)
	if p.bad {
		return
	}
	x := r.drop(id)
	if x == nil {
		x = r.server.unpark(e.RequestID)
	}
	if x != nil {
		x.end()
	}
	if r.server.OnEntry != nil {
		e.PID = r.pid
		r.server.OnEntry(e)
	}
}

// first handles the next bytes of a response that is observed. A request that another process has
// decided wants nothing of them. No bytes follow a First that has none.
func (r *reader) first(id uint64, content []byte) {
	x := r.find(id)
	if x != nil && !x.heard && r.server.OnFirst != nil {
		x.begin = append(x.begin, content...)
		if r.server.OnFirst(x.Head().ID(), x.begin) && len(content) > 0 && len(x.begin) < maxObserved {
			return
		}
		x.begin, x.heard = nil, true
	}
	_ = r.Add(func(out []byte) []byte { return appendBare(out, kindHeard, id) }) // a broken connection ends the request
}

// adopt takes over a request that was decided on an earlier connection.
func (r *reader) adopt(id uint64, p *payload) {
	e := liveOf(p, time.Now(), &r.words)
	if p.bad {
		return
	}
	if x := r.server.unpark(e.RequestID); x != nil {
		x.begin, x.heard = nil, len(x.begin) > 0 // a part of what was told of the response may be lost
		switch {
		case !x.move(r.conn, id): // it has ended
		case !r.enter(id, x):
			r.server.park(x) // this connection has broken too
		}
		return
	}
	if r.server.OnEntry != nil {
		e.PID = r.pid
		r.server.OnEntry(e)
	}
}

// flushApart writes what waits to be written, and leaves much of it to another goroutine.
func (c *conn) flushApart() {
	if c.Much() {
		go c.Flush() // Stop closes the socket, which ends the write
		return
	}
	c.Flush()
}

// enter adds an exchange. It returns false if the id is in use.
func (c *conn) enter(id uint64, x *exchange) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.live[id] != nil || c.Broken {
		return false
	}
	c.live[id] = x
	return true
}

// find returns the exchange with this id, or nil.
func (c *conn) find(id uint64) *exchange {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.live[id]
}

// drop removes the exchange with this id and returns it, or nil.
func (c *conn) drop(id uint64) *exchange {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.live[id]
	delete(c.live, id)
	return x
}

// fail ends the connection. Requests that are not decided end: Envoy gives them up. Those that are
// decided run on in Envoy, which tells them again over another connection. They are parked when
// fail returns, also if another goroutine has called it at the same time.
func (c *conn) fail(err error) { c.failed.Do(func() { c.abandon(err) }) }

// drain ends a connection that the filter has broken, after what it sent before has been read: the
// Ends among it come only once.
func (c *conn) drain() {
	c.draining.Store(true)
	_ = c.socket.SetReadDeadline(time.Now().Add(drainTime))
	select {
	case <-c.life.Done():
	case <-time.After(drainTime):
		c.fail(net.ErrClosed)
	}
}

// abandon does the work of fail.
func (c *conn) abandon(err error) {
	defer c.end()
	_ = c.socket.Close()
	if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.server.Log.Error("connection to Envoy's filter broke", zap.Error(err))
	}
	c.mu.Lock()
	c.Broken = true
	live := c.live
	c.live = nil
	memory, inlet := c.shared, c.inlet
	c.mu.Unlock()
	if inlet != nil {
		_ = inlet.Close()
	}
	if memory != nil {
		memory.leave()
	}
	for _, x := range live {
		c.server.park(x)
	}
	c.server.forget(c)
}
