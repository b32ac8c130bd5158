package frames

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// blockSize is the size of a block of shared memory. mapSize is that of the map before the
	// first block, which has a bit for each.
	blockSize = 32 << 10
	mapSize   = 4096
)

var errShared = errors.New("shared memory")

// shared is the memory in which a filter places long bodies. A body is read in place. Envoy is
// trusted not to change it meanwhile. A file of which a part is cut off would end this process, so
// that must be forbidden (F_SEAL_SHRINK).
type shared struct {
	memory []byte
	// users are the connection, while it lasts, and the bodies that are read. The last one unmaps
	// the memory.
	users atomic.Int64
}

// openShared maps a file with so many blocks. The connection is its first user.
func openShared(file *os.File, blocks uint32) (*shared, error) {
	if blocks == 0 || blocks > 8*mapSize {
		return nil, fmt.Errorf("%w: %d blocks", errShared, blocks)
	}
	size := mapSize + int64(blocks)*blockSize
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errShared, err)
	}
	seals, err := unix.FcntlInt(file.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 || info.Size() != size {
		return nil, fmt.Errorf("%w: %d bytes, of which %d are wanted, with the seals %#x", errShared, info.Size(), size, seals)
	}
	memory, err := unix.Mmap(int(file.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errShared, err)
	}
	s := &shared{memory: memory}
	s.users.Store(1)
	return s, nil
}

// take returns a body. It returns nil if there is none in this place, or if the connection has
// ended. The caller releases it.
func (s *shared) take(first, length uint32) []byte {
	from := mapSize + int64(first)*blockSize
	if length == 0 || from+int64(length) > int64(len(s.memory)) {
		return nil
	}
	for users := s.users.Load(); users > 0; users = s.users.Load() {
		if s.users.CompareAndSwap(users, users+1) {
			return s.memory[from : from+int64(length) : from+int64(length)]
		}
	}
	return nil
}

// release tells the filter that a body was read, which nobody may use afterwards.
func (s *shared) release(first, length uint32) {
	last := first + (length-1)/blockSize
	for word := first / 64; word <= last/64; word++ {
		mask := ^uint64(0)
		if word == first/64 {
			mask &= ^uint64(0) << (first % 64)
		}
		if word == last/64 {
			mask &= ^uint64(0) >> (63 - last%64)
		}
		atomic.AndUint64((*uint64)(unsafe.Pointer(&s.memory[8*word])), ^mask)
	}
	s.leave()
}

// leave ends a use.
func (s *shared) leave() {
	if s.users.Add(-1) == 0 {
		_ = unix.Munmap(s.memory) // it fails only for memory that is not mapped
	}
}

// passedFile returns the file that came with the first bytes of a connection, or nil.
func passedFile(oob []byte) *os.File {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var file *os.File
	for i := range messages {
		files, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range files {
			if file != nil {
				_ = unix.Close(fd) // only one is used
				continue
			}
			file = os.NewFile(uintptr(fd), "shared memory")
		}
	}
	return file
}
