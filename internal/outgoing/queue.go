// Package outgoing is the write side of a connection that many goroutines write to. Packages
// internal/grpcserver and internal/frames use it.
//
// Frames are gathered in a Queue, and leave by one write. There is no goroutine for that: whoever
// has added a frame writes all that waits, unless another goroutine writes just then, which then
// takes the frame along. A frame costs no allocation and no deadline of its own.
package outgoing

import (
	"io"
	"net"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/internal/nonblock"
)

const (
	// maxPiece is how many bytes are written at a time. A peer that reads slowly may take
	// writeTimeout for each piece of a large frame.
	maxPiece = 256 << 10
	// writeTimeout bounds the write of a piece. The deadline is set anew only when it is older than
	// renewal, so a piece may have so much less.
	writeTimeout = 10 * time.Second
	renewal      = time.Second
	// keptBuffer is the greatest size of a buffer that is kept for later frames, in bytes.
	keptBuffer = 64 << 10
	// maxInline is how much a reader writes itself, in bytes. A socket takes as much at once,
	// unless its peer does not read.
	maxInline = 32 << 10
)

// Queue is what waits to be written to a connection. New makes one. The lock that it shares with
// the connection guards its exported fields.
type Queue struct {
	// Out is what waits to be written. A goroutine that appends to it has seen Check return nil
	// with the same hold of the lock.
	Out []byte
	// Bodies is how many bytes of Out are bodies of requests. They do not count against the limit:
	// each of them belongs to a request that the peer holds. The code that appends a body adds its
	// size.
	Bodies int
	// Broken means that nothing is written any more.
	Broken bool

	lock   *sync.Mutex
	socket net.Conn
	limit  int
	// to is where the bytes go, which is the socket unless Redirect has named another one. output
	// writes to it. Both belong to the goroutine that writes.
	to     net.Conn
	output io.Writer
	// next is what Redirect has named since, and first what is to be written there before anything
	// else. Guarded by lock.
	next  net.Conn
	first []byte
	// spare is a buffer to use next, and writing means that a goroutine writes. Guarded by lock.
	spare   []byte
	writing bool
	// renewed is when the deadline of the socket was set. It belongs to the goroutine that writes.
	renewed time.Time
}

// New returns a Queue for a socket. The Queue closes the socket when a write fails. It also closes
// the socket when more than limit bytes wait while a goroutine writes others and more is to be
// written.
func New(lock *sync.Mutex, socket net.Conn, limit int) Queue {
	return Queue{lock: lock, socket: socket, to: socket, output: nonblock.WriterOf(socket), limit: limit}
}

// Redirect has what waits to be written go to another connection, after the bytes first. The socket
// is still the one that is closed when a write fails. The lock is held. Call it once, and then
// Flush.
func (q *Queue) Redirect(to net.Conn, first []byte) { q.next, q.first = to, first }

// Add has add append frames to what waits to be written. The error says that nothing is written any
// more.
func (q *Queue) Add(add func(out []byte) []byte) error {
	q.lock.Lock()
	defer q.lock.Unlock()
	if err := q.Check(); err != nil {
		return err
	}
	q.Out = add(q.Out)
	return nil
}

// Check returns an error if nothing is written any more. It breaks the connection if too much
// waits. What nobody has tried to write yet is not too much: it says nothing of the peer. One frame
// may be larger than the limit. The lock is held.
func (q *Queue) Check() error {
	if q.writing && len(q.Out)-q.Bodies > q.limit {
		q.breakOff()
	}
	if q.Broken {
		return net.ErrClosed
	}
	return nil
}

// Idle reports whether nothing waits and nothing is being written. The lock is held.
func (q *Queue) Idle() bool { return len(q.Out) == 0 && !q.writing }

// Flush writes what waits to be written, unless another goroutine does.
func (q *Queue) Flush() {
	q.lock.Lock()
	defer q.lock.Unlock()
	if q.writing {
		return
	}
	q.writing = true
	for (len(q.Out) > 0 || q.next != nil) && !q.Broken {
		out := q.Out
		q.Out, q.Bodies, q.spare = q.spare[:0], 0, nil
		if q.next != nil {
			q.to, q.output, q.renewed = q.next, nonblock.WriterOf(q.next), time.Time{}
			out, q.next, q.first = append(q.first, out...), nil, nil
		}
		q.lock.Unlock()
		err := q.write(out)
		q.lock.Lock()
		if cap(out) <= keptBuffer {
			q.spare = out[:0]
		}
		if err != nil {
			q.breakOff()
		}
	}
	q.writing = false
}

// Much reports whether a goroutine that reads the connection had better leave Flush to another one.
// A reader that waits for its peer to read would never read what the peer waits to write.
func (q *Queue) Much() bool {
	q.lock.Lock()
	defer q.lock.Unlock()
	return len(q.Out) > maxInline && !q.writing
}

// breakOff drops everything. The goroutine that reads sees the end of the socket. The lock is held.
func (q *Queue) breakOff() {
	q.Broken, q.Out, q.spare = true, nil, nil
	_ = q.socket.Close()
}

// write writes to the socket.
func (q *Queue) write(b []byte) error {
	for len(b) > 0 {
		n := min(len(b), maxPiece)
		if time.Since(q.renewed) >= renewal {
			now := time.Now()
			if err := q.to.SetWriteDeadline(now.Add(writeTimeout)); err != nil {
				return err
			}
			q.renewed = now
		}
		if _, err := q.output.Write(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
