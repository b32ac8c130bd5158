package filter

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// The types of frames, see package internal/frames.
const (
	frHello, frHeaders, frBody, frEnd, frLive, frFirst, frShared, frReady = 1, 2, 3, 4, 5, 6, 7, 8
	frWelcome, frGo, frReply, frWait, frAgain, frBye, frHeard, frJoin     = 1, 2, 3, 4, 5, 6, 7, 8
)

// frame is one frame that the filter has sent.
type frame struct {
	conn    *peerConn
	kind    byte
	flags   byte
	id      uint64
	payload []byte
}

// headers returns the list that begins at offset at of the payload.
func (f frame) list(t testing.TB, at int) map[string]string {
	t.Helper()
	m := make(map[string]string)
	b := f.payload[at:]
	n := int(binary.LittleEndian.Uint16(b))
	b = b[4:]
	for range n {
		k, v := int(binary.LittleEndian.Uint16(b)), int(binary.LittleEndian.Uint32(b[4:]))
		m[string(b[8:8+k])] = string(b[8+k : 8+k+v])
		b = b[8+k+v:]
	}
	if len(b) != 0 {
		t.Errorf("%d bytes follow the list", len(b))
	}
	return m
}

type peerConn struct {
	net.Conn
	// file is what came with the first frame. It is nil before.
	file *os.File
	// memory is what the filter shares, if the peer uses it.
	memory []byte
	// inlet is where the peer writes. nil: to the connection itself.
	inlet net.Conn
}

// Write writes an answer.
func (c *peerConn) Write(b []byte) (int, error) {
	if c.inlet != nil {
		return c.inlet.Write(b)
	}
	return c.Conn.Write(b)
}

// Close closes the connection, and then its inlet.
func (c *peerConn) Close() error {
	err := c.Conn.Close()
	if c.inlet != nil {
		err = errors.Join(err, c.inlet.Close())
	}
	return err
}

// readHead reads the head of a frame. A file comes with the first one.
func (c *peerConn) readHead(head []byte) error {
	if c.file != nil {
		_, err := io.ReadFull(c, head)
		return err
	}
	oob := make([]byte, syscall.CmsgSpace(4))
	n, oobn, _, _, err := c.Conn.(*net.UnixConn).ReadMsgUnix(head, oob)
	if err != nil {
		return err
	}
	if oobn > 0 {
		messages, err := syscall.ParseSocketControlMessage(oob[:oobn])
		if err != nil {
			return err
		}
		fds, err := syscall.ParseUnixRights(&messages[0])
		if err != nil {
			return err
		}
		c.file = os.NewFile(uintptr(fds[0]), "shared memory")
	}
	_, err = io.ReadFull(c, head[n:])
	return err
}

// mapped maps the memory of the filter, and returns 1, if the peer is to use it.
func (p *peer) mapped(c *peerConn) byte {
	if !p.shares.Load() || c.file == nil {
		return 0
	}
	memory, err := syscall.Mmap(int(c.file.Fd()), 0, sharedMap+sharedBlocks*sharedBlock, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	c.memory = memory
	return 1
}

// protocolVersion is frames.Version, which this package must not import.
const protocolVersion = 6

// The memory that the filter shares, see package internal/frames.
const sharedMap, sharedBlock, sharedBlocks = 4096, 32 << 10, 256

// shared returns the body that f has placed, and a function that frees its blocks.
func (f frame) shared() (body []byte, free func()) {
	first, n := binary.LittleEndian.Uint32(f.payload), binary.LittleEndian.Uint32(f.payload[4:])
	at := sharedMap + int(first)*sharedBlock
	return f.conn.memory[at : at+int(n)], func() {
		for b := first; b <= first+(n-1)/sharedBlock; b++ {
			atomic.AndUint64((*uint64)(unsafe.Pointer(&f.conn.memory[b/64*8])), ^(uint64(1) << (b % 64)))
		}
	}
}

// send sends a frame. A connection that the filter has closed is no fault.
func (c *peerConn) send(kind, flags byte, id uint64, payload []byte) {
	_, _ = c.Write(encode(kind, flags, id, payload))
}

func encode(kind, flags byte, id uint64, payload []byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(payload)))
	b = append(b, kind, flags, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, id)
	return append(b, payload...)
}

type pairs [][2]string

func appendPairs(b []byte, p pairs) []byte {
	for _, x := range p {
		b = binary.LittleEndian.AppendUint16(b, uint16(len(x[0])))
		b = append(b, 0, 0)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(x[1])))
		b = append(append(b, x[0]...), x[1]...)
	}
	return b
}

// goFrame is the payload of Go.
func goFrame(set pairs, remove []string, metadata pairs, body string) []byte {
	var b []byte
	for _, n := range []int{len(set), len(remove), len(metadata), 0} {
		b = binary.LittleEndian.AppendUint16(b, uint16(n))
	}
	b = appendPairs(b, set)
	for _, name := range remove {
		b = append(binary.LittleEndian.AppendUint16(b, uint16(len(name))), name...)
	}
	return append(appendPairs(b, metadata), body...)
}

func replyFrame(status int, headers pairs, details, body string) []byte {
	var b []byte
	for _, n := range []int{status, len(headers), len(details), 0} {
		b = binary.LittleEndian.AppendUint16(b, uint16(n))
	}
	return append(append(appendPairs(b, headers), details...), body...)
}

// decide sends Go with the cluster of the tests.
func (f frame) decide() { f.conn.send(frGo, 0, f.id, goFrame(toModel, nil, nil, "")) }

var toModel = pairs{{"x-sluice-cluster", "model/m"}}

// peer is a gateway that the test plays.
type peer struct {
	path    string
	silence uint32 // what Welcome says, in milliseconds
	frames  chan frame
	mu      sync.Mutex
	l       net.Listener
	conns   []*peerConn
	held    []frame
	wait    sync.WaitGroup
	// reading is held while the peer does not read.
	reading sync.RWMutex
	// later is how much later the version of the protocol is.
	later atomic.Uint32
	// shares has new connections use the filter's memory.
	shares atomic.Bool
	// inlets is the path of the listener for answers. Empty: the peer answers where it is asked.
	inlets string
	// dialing is held while a connection finds its inlet. spare are those of workers that have not
	// said Hello. Guarded by dialing.
	dialing sync.Mutex
	spare   map[uint32][]net.Conn
	// decideAll has new connections decided by decideAtOnce.
	decideAll atomic.Bool
}

func newPeer(t testing.TB) *peer {
	t.Helper()
	dir, err := os.MkdirTemp("", "frames")
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{path: filepath.Join(dir, "s"), silence: 60_000, frames: make(chan frame, 1<<20), spare: map[uint32][]net.Conn{}}
	p.listen(t)
	t.Cleanup(func() {
		p.kill()
		p.wait.Wait()
		for _, kept := range p.spare {
			for _, c := range kept {
				c.Close()
			}
		}
		os.RemoveAll(dir)
	})
	return p
}

func (p *peer) listen(t testing.TB) {
	t.Helper()
	os.Remove(p.path)
	l, err := net.Listen("unix", p.path)
	if err != nil {
		t.Fatal(err)
	}
	p.l = l
	p.wait.Go(func() { p.accept(l) })
}

func (p *peer) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		pc := &peerConn{Conn: c}
		p.conns = append(p.conns, pc)
		p.mu.Unlock()
		p.wait.Go(func() { p.read(pc) })
	}
}

func (p *peer) read(c *peerConn) {
	defer c.Close()
	defer func() { _ = syscall.Munmap(c.memory) }() // it fails for a peer that shares nothing
	for {
		f, err := p.readFrame(c)
		if err != nil {
			return
		}
		if f.kind == frHello {
			payload := binary.LittleEndian.AppendUint32(nil, protocolVersion+p.later.Load())
			payload = binary.LittleEndian.AppendUint32(payload, p.silence)
			c.send(frWelcome, 0, 0, append(payload, p.mapped(c), 0, 0, 0))
			p.join(c, f)
		}
		if p.decideAll.Load() {
			decideAtOnce(c)
			return
		}
		p.frames <- f
	}
}

// join has the answers of a connection go to an inlet, if the peer uses inlets.
func (p *peer) join(c *peerConn, hello frame) {
	if p.inlets == "" || p.later.Load() > 0 {
		return
	}
	inlet := p.inletOf(binary.LittleEndian.Uint32(hello.payload[4:]))
	if inlet == nil {
		return // Envoy ends
	}
	_, _ = inlet.Write(encode(frJoin, 0, 0, hello.payload[20:28]))
	p.mu.Lock()
	defer p.mu.Unlock()
	c.inlet = inlet
	if !slices.Contains(p.conns, c) { // it was killed meanwhile
		inlet.Close()
	}
}

// inletOf returns a connection to a worker, or nil.
func (p *peer) inletOf(worker uint32) net.Conn {
	p.dialing.Lock()
	defer p.dialing.Unlock()
	for {
		if kept := p.spare[worker]; len(kept) > 0 {
			p.spare[worker] = kept[1:]
			return kept[0]
		}
		c, err := net.Dial("unix", p.inlets)
		if err != nil {
			return nil
		}
		var ready [28]byte
		if _, err := io.ReadFull(c, ready[:]); err != nil || ready[4] != frReady {
			c.Close()
			return nil
		}
		w := binary.LittleEndian.Uint32(ready[16:])
		p.spare[w] = append(p.spare[w], c)
	}
}

func (p *peer) readFrame(c *peerConn) (frame, error) {
	var head [16]byte
	if err := c.readHead(head[:]); err != nil {
		return frame{}, err
	}
	p.reading.RLock()
	defer p.reading.RUnlock()
	n := binary.LittleEndian.Uint32(head[:])
	if n > 1<<28 || head[4] < frHello || head[4] > frShared || head[6] != 0 || head[7] != 0 {
		panic(fmt.Sprintf("the filter sent a malformed head: %x", head))
	}
	f := frame{conn: c, kind: head[4], flags: head[5], id: binary.LittleEndian.Uint64(head[8:]), payload: make([]byte, n)}
	_, err := io.ReadFull(c, f.payload)
	return f, err
}

// kill ends the peer as kill -9 does.
func (p *peer) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.l.Close()
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

// next returns the next frame of one of the kinds, and keeps those of other kinds for later.
func (p *peer) next(t testing.TB, kinds ...byte) frame {
	t.Helper()
	for i, f := range p.held {
		if slices.Contains(kinds, f.kind) {
			p.held = append(p.held[:i:i], p.held[i+1:]...)
			return f
		}
	}
	timeout := time.After(testTimeout)
	for {
		select {
		case f := <-p.frames:
			if slices.Contains(kinds, f.kind) {
				return f
			}
			p.held = append(p.held, f)
		case <-timeout:
			t.Fatalf("no frame of kind %d came; there are %d others", kinds, len(p.held))
		}
	}
}

// zeros reports whether b is only zeros.
func zeros(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }
