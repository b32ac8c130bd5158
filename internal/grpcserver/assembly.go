package grpcserver

import (
	"encoding/binary"
	"math/bits"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// assembly puts the messages of a stream together.
type assembly struct {
	buffers *buffers
	// prefix is that of the message which has begun, and filled how many bytes of it have come.
	prefix [prefixSize]byte
	filled int
	// content is what has come of the message.
	content []byte
}

// next takes bytes from available and returns how many. If a message is whole, content is it, and
// at is where it lies. The error is a status of gRPC.
func (a *assembly) next(available []byte, most int) (n int, content []byte, at place, err error) {
	if a.filled == 0 && len(available) >= prefixSize {
		size, err := sizeOf(available, most)
		if err != nil {
			return len(available), nil, 0, err
		}
		if end := prefixSize + size; end <= len(available) {
			return end, available[prefixSize:end:end], inBuffer, nil
		}
	}
	if a.filled < prefixSize {
		n = copy(a.prefix[a.filled:], available)
		if a.filled += n; a.filled < prefixSize {
			return n, nil, 0, nil
		}
	}
	size, err := sizeOf(a.prefix[:], most)
	if err != nil {
		return len(available), nil, 0, err
	}
	if a.content == nil {
		a.content = a.buffers.get(size)
	}
	more := min(size-len(a.content), len(available)-n)
	if len(a.content)+more > cap(a.content) { // so much has come that the client is believed
		a.content = append(make([]byte, 0, size), a.content...)
	}
	a.content = append(a.content, available[n:n+more]...)
	if n += more; len(a.content) < size {
		return n, nil, 0, nil
	}
	content = a.content
	a.content, a.filled = nil, 0
	return n, content, onItsOwn, nil
}

// sizeOf returns the size of a message by its prefix.
func sizeOf(prefix []byte, most int) (int, error) {
	if prefix[0] != 0 {
		return 0, status.Error(codes.Unimplemented, "a message is compressed")
	}
	size := binary.BigEndian.Uint32(prefix[1:])
	if int64(size) > int64(most) {
		return 0, status.Errorf(codes.ResourceExhausted, "a message has %d bytes, more than %d", size, most)
	}
	return int(size), nil
}

// buffers keeps the memory of messages for later ones. A message that waits keeps its buffer, so
// there is one for each power of two. The zero value is ready to use.
type buffers [largestBuffer - smallestBuffer + 1]sync.Pool

// Sizes of the buffers, as powers of two.
const (
	smallestBuffer = 10
	largestBuffer  = 20
	largeBuffer    = 1 << largestBuffer
)

// get returns an empty buffer for a message of this size. The buffer of a very large message has to
// grow once, since a client may say any size.
func (p *buffers) get(size int) []byte {
	if size > largeBuffer {
		return make([]byte, 0, min(size, 2*largeBuffer))
	}
	power := max(bits.Len(uint(max(size, 1)-1)), smallestBuffer)
	if b, ok := p[power-smallestBuffer].Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, 0, 1<<power)
}

// put takes a buffer back.
func (p *buffers) put(b []byte) {
	b = b[:0]
	if power := bits.Len(uint(cap(b))) - 1; power >= smallestBuffer && power <= largestBuffer && cap(b) == 1<<power {
		p[power-smallestBuffer].Put(&b)
	}
}
