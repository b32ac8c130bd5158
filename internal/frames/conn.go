package frames

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"
)

const (
	// bufferSize is the size of a reader's buffer. A larger frame has a buffer of its own.
	bufferSize = 64 << 10
	// maxQueue is how many bytes may wait for a worker that does not read. The connection of such
	// a worker is closed.
	maxQueue = 16 << 20
	// writeTimeout bounds one write.
	writeTimeout = 10 * time.Second
)

// conn is the connection of one worker of an Envoy.
//
// One goroutine at a time is the reader: it reads frames and has requests decided. When a decision
// is about to block, another goroutine becomes the reader, and the first one ends with its request.
// So a request costs no goroutine unless it waits.
type conn struct {
	server *Server
	socket net.Conn

	mu sync.Mutex
	// live has the requests that have not ended, by their ids. Guarded by mu.
	live map[uint64]*exchange
	// out is what waits to be written, and spare a buffer to use next. writing means that a
	// goroutine writes. broken means that nothing is written any more. Guarded by mu.
	out, spare      []byte
	writing, broken bool
	// greeted means that Hello has come. Only the reader uses it.
	greeted bool
	// worker is whose connection it is. It is set by Hello. Guarded by Server.mu.
	worker worker
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
	// gone means that another goroutine reads. The buffer then belongs to the request that waits.
	gone bool
}

// read reads frames until the connection ends, or until another goroutine reads.
func (r *reader) read() {
	for {
		if err := r.frames(); err != nil {
			r.fail(err)
			return
		}
		if r.gone {
			r.flush()
			return
		}
		r.flush()
		r.makeRoom()
		n, err := r.socket.Read(r.buffer[r.end:])
		if r.end += n; n == 0 && err != nil {
			r.fail(err)
			return
		}
	}
}

// frames handles the frames that are there as a whole.
func (r *reader) frames() error {
	for !r.gone && r.end-r.begin >= headSize {
		h := readHead(r.buffer[r.begin:])
		if int64(h.length) > r.server.maxPayload() {
			return fmt.Errorf("%w: %d bytes", errMalformed, h.length)
		}
		size := headSize + int(h.length)
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
	need := bufferSize
	if len(begun) >= headSize {
		need = max(need, headSize+int(readHead(begun).length))
	}
	if need != len(r.buffer) && (need > len(r.buffer) || len(r.buffer) > bufferSize) {
		larger := make([]byte, need)
		copy(larger, begun)
		r.buffer = larger
	} else if r.begin > 0 {
		copy(r.buffer, begun)
	}
	r.begin, r.end = 0, len(begun)
}

// handOver makes another goroutine the reader.
func (r *reader) handOver() {
	if r.gone {
		return
	}
	r.gone = true
	next := &reader{conn: r.conn, buffer: make([]byte, max(bufferSize, r.end-r.begin))}
	next.end = copy(next.buffer, r.buffer[r.begin:r.end])
	r.flush()
	r.server.running.Go(next.read)
}

// frame handles one frame.
func (r *reader) frame(h head, content []byte) error {
	p := payload{rest: content}
	if !r.greeted {
		return r.hello(h, &p)
	}
	switch h.kind {
	case kindHeaders:
		r.headers(h, &p)
	case kindBody:
		r.body(h.id, content)
	case kindEnd:
		r.ended(h.id, &p)
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
	if h.kind != kindHello || p.bad {
		return fmt.Errorf("%w: the first one is of type %d", errMalformed, h.kind)
	}
	if version != Version {
		if r.server.OnVersion != nil {
			r.server.OnVersion(version)
		}
		return fmt.Errorf("the filter speaks version %d, the gateway version %d", version, Version)
	}
	r.greeted = true
	r.server.replace(r.conn, from)
	return r.queue(func(out []byte) []byte { return appendWelcome(out, uint32(r.server.Patience.Milliseconds())) })
}

// headers opens the exchange of a request.
func (r *reader) headers(h head, p *payload) {
	x := newExchange(r, h.id)
	p.pairs(x.Head().Add)
	if p.bad = p.bad || len(p.rest) > 0; p.bad {
		x.end()
		return
	}
	if !r.add(h.id, x) {
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

// ended tells that a request has ended.
func (r *reader) ended(id uint64, p *payload) {
	e := entryOf(p)
	if p.bad {
		return
	}
	if x := r.drop(id); x != nil {
		x.end()
	}
	if r.server.OnEntry != nil {
		r.server.OnEntry(e)
	}
}

// adopt takes over a request that was decided on an earlier connection.
func (r *reader) adopt(id uint64, p *payload) {
	e := liveOf(p, time.Now())
	if p.bad {
		return
	}
	if x := r.server.unpark(e.RequestID); x != nil {
		switch {
		case !x.move(r.conn, id): // it has ended
		case !r.add(id, x):
			r.server.park(x) // this connection has broken too
		}
		return
	}
	if r.server.OnEntry != nil {
		r.server.OnEntry(e)
	}
}

// add adds an exchange. It returns false if the id is in use.
func (c *conn) add(id uint64, x *exchange) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.live[id] != nil || c.broken {
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

// queue appends frames to what waits to be written. The error says that nothing is written any
// more.
func (c *conn) queue(add func(out []byte) []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken {
		return net.ErrClosed
	}
	c.out = add(c.out)
	if len(c.out) > maxQueue {
		c.broken = true
		_ = c.socket.Close()
		return net.ErrClosed
	}
	return nil
}

// flush writes what waits to be written, unless another goroutine does.
func (c *conn) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writing {
		return
	}
	c.writing = true
	for len(c.out) > 0 && !c.broken {
		out := c.out
		c.out, c.spare = c.spare[:0], nil
		c.mu.Unlock()
		err := c.write(out)
		c.mu.Lock()
		if cap(out) <= bufferSize {
			c.spare = out[:0]
		}
		if err != nil {
			c.broken = true
			_ = c.socket.Close() // the reader sees it
		}
	}
	c.writing = false
}

// write writes to the socket.
func (c *conn) write(b []byte) error {
	if err := c.socket.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err := c.socket.Write(b)
	return err
}

// fail ends the connection. Requests that are not decided end: Envoy gives them up. Those that are
// decided run on in Envoy, which tells them again over another connection.
func (c *conn) fail(err error) {
	_ = c.socket.Close()
	if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		c.server.Log.Error("connection to Envoy's filter broke", zap.Error(err))
	}
	c.mu.Lock()
	c.broken = true
	live := c.live
	c.live = nil
	c.mu.Unlock()
	for _, x := range live {
		c.server.park(x)
	}
	c.server.forget(c)
}
