package frames

import (
	"encoding/binary"
	"errors"
	"unsafe"

	"github.com/sluice-gateway/sluice/internal/decide"
)

// Version is the version of the protocol. Both ends must have the same.
const Version = 6

// headSize is the size of a frame's head in bytes.
const headSize = 16

// kind is the type of a frame. The two directions count apart.
type kind uint8

// The frames from the filter.
const (
	kindHello   kind = 1
	kindHeaders kind = 2
	kindBody    kind = 3
	kindEnd     kind = 4
	kindLive    kind = 5
	kindFirst   kind = 6
	kindShared  kind = 7
	kindReady   kind = 8
)

// The frames from the gateway.
const (
	kindWelcome kind = 1
	kindGo      kind = 2
	kindReply   kind = 3
	kindWait    kind = 4
	kindAgain   kind = 5
	kindBye     kind = 6
	kindHeard   kind = 7
	kindJoin    kind = 8
)

const (
	// flagBodyless marks Headers of a request without a body.
	flagBodyless = 1
	// flagBody marks a Go that replaces the body.
	flagBody = 1
	// flagNameless marks a Go whose client does not learn which replica has answered.
	flagNameless = 2
)

// errMalformed means that the other end does not speak the protocol.
var errMalformed = errors.New("malformed frame")

// head is the head of a frame.
type head struct {
	length uint32
	kind   kind
	flags  uint8
	id     uint64
}

// readHead reads the first headSize bytes of b.
func readHead(b []byte) head {
	return head{binary.LittleEndian.Uint32(b), kind(b[4]), b[5], binary.LittleEndian.Uint64(b[8:])}
}

// begin appends a head whose length is still to come. end sets the length.
func begin(out []byte, k kind, flags uint8, id uint64) []byte {
	out = append(out, 0, 0, 0, 0, byte(k), flags, 0, 0)
	return binary.LittleEndian.AppendUint64(out, id)
}

// end sets the length of the frame that begins at from and ends with out.
func end(out []byte, from int) []byte {
	binary.LittleEndian.PutUint32(out[from:], uint32(len(out)-from-headSize))
	return out
}

// payload reads a payload in place. After the first thing that is not there, bad is true and
// everything is zero.
type payload struct {
	rest []byte
	bad  bool
}

// take returns the next n bytes.
func (p *payload) take(n int) []byte {
	if n < 0 || n > len(p.rest) {
		p.bad, p.rest = true, nil
		return nil
	}
	taken := p.rest[:n:n]
	p.rest = p.rest[n:]
	return taken
}

func (p *payload) uint16() int {
	if b := p.take(2); b != nil {
		return int(binary.LittleEndian.Uint16(b))
	}
	return 0
}

func (p *payload) uint32() uint32 {
	if b := p.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (p *payload) uint64() uint64 {
	if b := p.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// pairs calls yield for each pair of a list. The slices belong to the frame.
func (p *payload) pairs(yield func(name string, value []byte)) {
	n := p.uint16()
	p.uint16()
	for range n {
		name := p.uint16()
		p.uint16()
		value := p.uint32()
		b := p.take(name)
		v := p.take(int(value))
		if p.bad {
			return
		}
		yield(unsafe.String(unsafe.SliceData(b), len(b)), v)
	}
}

func appendPair(out []byte, name, value string) []byte {
	out = binary.LittleEndian.AppendUint16(out, uint16(len(name)))
	out = append(out, 0, 0)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(value)))
	return append(append(out, name...), value...)
}

func appendWelcome(out []byte, wait uint32, shares bool) []byte {
	from := len(out)
	out = begin(out, kindWelcome, 0, 0)
	out = binary.LittleEndian.AppendUint32(out, Version)
	out = binary.LittleEndian.AppendUint32(out, wait)
	return end(append(out, flagOf(shares), 0, 0, 0), from)
}

// appendRefusal appends the Welcome to a filter of another version. All versions know its length.
func appendRefusal(out []byte) []byte {
	from := len(out)
	out = binary.LittleEndian.AppendUint32(begin(out, kindWelcome, 0, 0), Version)
	return end(append(out, 0, 0, 0, 0), from)
}

// flagOf returns 1 for true.
func flagOf(b bool) byte {
	if b {
		return 1
	}
	return 0
}

func appendWait(out []byte, id uint64, milliseconds uint32) []byte {
	from := len(out)
	return end(binary.LittleEndian.AppendUint32(begin(out, kindWait, 0, id), milliseconds), from)
}

func appendJoin(out []byte, number uint64) []byte {
	from := len(out)
	return end(binary.LittleEndian.AppendUint64(begin(out, kindJoin, 0, 0), number), from)
}

// appendBare appends a frame without a payload.
func appendBare(out []byte, k kind, id uint64) []byte { return begin(out, k, 0, id) }

// appendAnswer appends a Go or a Reply. flags are those of a Go besides flagBody. remove are
// further headers to remove.
func appendAnswer(out []byte, id uint64, a *decide.Answer, flags uint8, remove []string) []byte {
	if a.Kind == decide.Reply {
		return appendReply(out, id, a)
	}
	from := len(out)
	if a.Body != nil {
		flags |= flagBody
	}
	out = begin(out, kindGo, flags, id)
	counts := len(out)
	out = append(out, 0, 0, 0, 0, 0, 0, 0, 0)
	binary.LittleEndian.PutUint16(out[counts:], uint16(len(a.Set)))
	binary.LittleEndian.PutUint16(out[counts+2:], uint16(len(a.Remove)+len(remove)))
	for _, h := range a.Set {
		out = appendPair(out, h.Name, h.Value)
	}
	for _, names := range [2][]string{a.Remove, remove} {
		for _, name := range names {
			out = append(binary.LittleEndian.AppendUint16(out, uint16(len(name))), name...)
		}
	}
	values := 0
	for name, value := range a.Metadata.All {
		out = appendPair(out, name, value)
		values++
	}
	binary.LittleEndian.PutUint16(out[counts+4:], uint16(values))
	return end(append(out, a.Body...), from)
}

func appendReply(out []byte, id uint64, a *decide.Answer) []byte {
	from := len(out)
	out = begin(out, kindReply, 0, id)
	out = binary.LittleEndian.AppendUint16(out, uint16(a.Status))
	out = binary.LittleEndian.AppendUint16(out, uint16(len(a.Set)))
	out = binary.LittleEndian.AppendUint16(out, uint16(len(a.Details)))
	out = append(out, 0, 0)
	for _, h := range a.Set {
		out = appendPair(out, h.Name, h.Value)
	}
	out = append(out, a.Details...)
	return end(append(out, a.Body...), from)
}
