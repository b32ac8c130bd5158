package frames

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-gateway/sluice/internal/decide"
	"github.com/sluice-gateway/sluice/internal/decide/decidetest"
)

// placer is the filter's end of shared memory.
type placer struct {
	t      testing.TB
	file   *os.File
	memory []byte
	mu     sync.Mutex
}

const testBlocks = 256

// newPlacer makes the file of the filter. Its size is what it is for, unless other bytes are added.
func newPlacer(t testing.TB, seals, more int) *placer {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "test")
	t.Cleanup(func() { f.Close() })
	size := mapSize + testBlocks*blockSize + more
	if err := f.Truncate(int64(size)); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	m, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(m) }) //nolint:errcheck // a test ends
	return &placer{t: t, file: f, memory: m}
}

func (p *placer) word(n uint32) *uint64 { return (*uint64)(unsafe.Pointer(&p.memory[8*n])) }

// inUse counts the blocks whose bits are set.
func (p *placer) inUse() (n int) {
	for i := range uint32(testBlocks) {
		n += int(atomic.LoadUint64(p.word(i/64)) >> (i % 64) & 1)
	}
	return n
}

// place puts a text into the first blocks that are free, and returns the payload of Shared.
func (p *placer) place(text string) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	blocks, run := uint32(len(text)+blockSize-1)/blockSize, uint32(0)
	for i := range uint32(testBlocks) {
		if run++; atomic.LoadUint64(p.word(i/64))>>(i%64)&1 != 0 {
			run = 0
		}
		if run < blocks {
			continue
		}
		first := i + 1 - blocks
		for b := first; b <= i; b++ {
			atomic.OrUint64(p.word(b/64), 1<<(b%64))
		}
		copy(p.memory[mapSize+int(first)*blockSize:], text)
		return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, first), uint32(len(text)))
	}
	p.t.Fatal("no room")
	return nil
}

// connectShared opens a connection, and passes the file with Hello. It returns whether the gateway
// uses it.
func connectShared(t testing.TB, path string, p *placer) (f *filter, shares bool) {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	hello := frame(kindHello, 0, 0, helloPayload(testBlocks))
	if _, _, err := c.(*net.UnixConn).WriteMsgUnix(hello, unix.UnixRights(int(p.file.Fd())), nil); err != nil {
		t.Fatal(err)
	}
	f = &filter{t, c}
	h, payload := f.next()
	if h.kind != kindWelcome || len(payload) != 12 {
		t.Fatalf("the answer to Hello: %v, %v", h, payload)
	}
	return f, payload[8] == 1
}

// sharing is a client whose bodies are in shared memory.
type sharing struct {
	*client
	placer *placer
}

// Body implements decidetest.Client.
func (s sharing) Body(text string) {
	if text == "" {
		s.client.Body(text)
		return
	}
	s.send(kindShared, 0, s.id, s.placer.place(text))
}

// TestB6_TransportWithSharedBodies runs the tests of every transport. All blocks are free in the
// end.
func TestB6_TransportWithSharedBodies(t *testing.T) {
	decidetest.Run(t, func(t testing.TB, d *decide.Decider) func() decidetest.Client {
		_, path := serve(t, d)
		p := newPlacer(t, unix.F_SEAL_SHRINK, 0)
		f, shares := connectShared(t, path, p)
		if !shares {
			t.Fatal("the gateway does not use the memory")
		}
		m := newMux(f)
		t.Cleanup(func() { eventually(t, "all blocks are free", func() bool { return p.inUse() == 0 }) })
		return func() decidetest.Client { return sharing{m.open().(*client), p} }
	})
}

// A body is read and its blocks are freed, although its request is not known.
func TestB6_BlocksOfAnEndedRequestAreFreed(t *testing.T) {
	t.Parallel()
	_, path := serve(t, decidetest.New(t, 1, decide.UploadLimits{}))
	p := newPlacer(t, unix.F_SEAL_SHRINK, 0)
	f, _ := connectShared(t, path, p)
	f.send(kindShared, 0, 7, p.place(string(make([]byte, 70<<10))))
	eventually(t, "the blocks are free", func() bool { return p.inUse() == 0 })
}

// The gateway maps no file that could cut off what it reads, and none of another size.
func TestB6_AFileThatCanShrinkIsNotMapped(t *testing.T) {
	t.Parallel()
	_, path := serve(t, decidetest.New(t, 1, decide.UploadLimits{}))
	for name, p := range map[string]*placer{"no seal": newPlacer(t, 0, 0), "too small": newPlacer(t, unix.F_SEAL_SHRINK, -1)} {
		if f, shares := connectShared(t, path, p); shares {
			t.Errorf("%s: the gateway uses the memory", name)
		} else { // the connection goes on
			f.send(kindHeaders, flagBodyless, 1, chatHeaders("wrong"))
			if h, _ := f.next(); h.kind != kindReply {
				t.Errorf("%s: a frame of type %d", name, h.kind)
			}
		}
	}
}

// A place outside of the memory ends the connection.
func TestB6_APlaceOutsideEndsTheConnection(t *testing.T) {
	t.Parallel()
	_, path := serve(t, decidetest.New(t, 1, decide.UploadLimits{}))
	p := newPlacer(t, unix.F_SEAL_SHRINK, 0)
	for _, place := range [][2]uint32{{testBlocks, 1}, {testBlocks - 1, blockSize + 1}, {1<<32 - 1, 1<<32 - 1}, {0, 0}} {
		f, _ := connectShared(t, path, p)
		f.send(kindShared, 0, 1, binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, place[0]), place[1]))
		if h, _, err := f.read(); err == nil {
			t.Errorf("%v: a frame of type %d", place, h.kind)
		}
	}
}

// The memory stays mapped while a body is read, also after the end of its connection.
func TestB6_ABodyOutlivesItsConnection(t *testing.T) {
	t.Parallel()
	p := newPlacer(t, unix.F_SEAL_SHRINK, 0)
	s, err := openShared(p.file, testBlocks)
	if err != nil {
		t.Fatal(err)
	}
	place := p.place("the body")
	first, length := binary.LittleEndian.Uint32(place), binary.LittleEndian.Uint32(place[4:])
	body := s.take(first, length)
	s.leave() // the connection ends
	if string(body) != "the body" {
		t.Errorf("the body is %q", body)
	}
	s.release(first, length)
	if s.users.Load() != 0 || p.inUse() != 0 {
		t.Errorf("%d users, %d blocks in use", s.users.Load(), p.inUse())
	}
	if s.take(first, length) != nil {
		t.Error("a body is taken from memory that is not mapped any more")
	}
}

// A release clears the bits of its body, and no others.
func TestB6_AReleaseClearsItsBits(t *testing.T) {
	t.Parallel()
	p := newPlacer(t, unix.F_SEAL_SHRINK, 0)
	s, err := openShared(p.file, testBlocks)
	if err != nil {
		t.Fatal(err)
	}
	defer s.leave()
	random := rand.New(rand.NewPCG(1, 1))
	for range 1000 {
		for i := range uint32(testBlocks / 64) {
			atomic.StoreUint64(p.word(i), ^uint64(0))
		}
		first := random.Uint32N(testBlocks)
		blocks := 1 + random.Uint32N(testBlocks-first)
		length := (blocks-1)*blockSize + 1 + random.Uint32N(blockSize)
		if s.take(first, length) == nil {
			t.Fatalf("blocks %d to %d are not taken", first, first+blocks)
		}
		s.release(first, length)
		for i := range uint32(testBlocks) {
			set, want := atomic.LoadUint64(p.word(i/64))>>(i%64)&1 == 1, i < first || i >= first+blocks
			if set != want {
				t.Fatalf("blocks %d to %d are released: the bit of %d is %v", first, first+blocks, i, set)
			}
		}
	}
}

// A connection that ends before it has said Hello leaves no file open, however many come.
func TestB6_FilesOfFailedHellosAreClosed(t *testing.T) {
	s, path := serve(t, decidetest.New(t, 1, decide.UploadLimits{}))
	p := newPlacer(t, unix.F_SEAL_SHRINK, 0)
	before := openFiles(t)
	for _, begun := range [][]byte{make([]byte, headSize), make([]byte, headSize-1)} {
		for range 20 {
			c, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			for i := range begun { // a file with each byte
				if _, _, err := c.(*net.UnixConn).WriteMsgUnix(begun[i:i+1], unix.UnixRights(int(p.file.Fd())), nil); err != nil {
					break
				}
			}
			c.Close()
		}
	}
	eventually(t, "all connections have ended", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.conns) == 0
	})
	eventually(t, "all files are closed", func() bool { return openFiles(t) <= before })
}

// openFiles counts the files without a name that this process has open.
func openFiles(t *testing.T) (n int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(target, "/memfd:test") {
			n++
		}
	}
	return n
}
