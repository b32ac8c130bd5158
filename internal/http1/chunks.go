package http1

import (
	"errors"
	"fmt"
	"io"
)

const (
	// maxChunkLine is the greatest length of the line before a chunk, with its end, in bytes.
	maxChunkLine = clientBuffer
	// maxChunkDigits is how many digits the size of a chunk may have.
	maxChunkDigits = 16
	// maxChunkOverhead bounds how many bytes of lines a body may have beyond 16 for each chunk and
	// two for each byte of its data.
	maxChunkOverhead = 16 << 10
)

var (
	errChunkLine     = errors.New("http1: malformed line before a chunk")
	errChunkLineLong = fmt.Errorf("http1: the line before a chunk is longer than %d bytes", maxChunkLine)
	errChunkEnd      = errors.New("http1: no line end after a chunk")
	errChunkOverhead = errors.New("http1: the body in chunks has too little data in too many lines")
)

// chunkState is what a chunkDecoder expects next.
type chunkState uint8

const (
	chunkSize      chunkState = iota // a digit of the size, or what may follow the size
	chunkSpace                       // white space after the size
	chunkExtension                   // the rest of the line after a semicolon
	chunkLineEnd                     // the line feed after the line's carriage return
	chunkData
	chunkDataCR
	chunkDataLF
)

// chunkDecoder removes the lines of the chunked transfer coding (RFC 9112, section 7.1). It accepts
// what net/http accepts. The zero value is ready for the first chunk.
type chunkDecoder struct {
	state chunkState
	// line and digits are the lengths so far of the line, without its end, and of the size in it.
	line, digits int
	// left is the size of the chunk, then how much of its data is still to come.
	left uint64
	// excess is how much of the lines counts towards maxChunkOverhead.
	excess int64
}

// decode moves the data of the chunks in p to the beginning of p and returns how much it is. After
// the line of the last chunk it returns io.EOF and what followed that line, the trailer. After any
// error it must not be called again.
func (d *chunkDecoder) decode(p []byte) (n int, rest []byte, err error) {
	for i := 0; i < len(p); {
		if d.state == chunkData {
			piece := p[i:min(uint64(len(p)), uint64(i)+min(d.left, uint64(len(p))))]
			n += copy(p[n:], piece)
			i += len(piece)
			if d.left -= uint64(len(piece)); d.left == 0 {
				d.state = chunkDataCR
			}
			continue
		}
		if err := d.next(p[i]); err != nil {
			return n, p[i+1:], err
		}
		i++
	}
	return n, nil, nil
}

// next takes a byte that is not data. It returns io.EOF at the end of the last chunk's line.
func (d *chunkDecoder) next(b byte) error {
	switch d.state {
	case chunkDataCR:
		d.state = chunkDataLF
		if b != '\r' {
			return errChunkEnd
		}
		return nil
	case chunkDataLF:
		d.state = chunkSize
		if b != '\n' {
			return errChunkEnd
		}
		return nil
	case chunkLineEnd:
		if b != '\n' {
			return errChunkLine
		}
		return d.begin()
	}
	if b == '\r' {
		d.state = chunkLineEnd
		return nil
	}
	if d.line++; d.line+len("\r\n") > maxChunkLine {
		return errChunkLineLong
	}
	return d.nextOfLine(b)
}

// nextOfLine takes a byte of the line before a chunk.
func (d *chunkDecoder) nextOfLine(b byte) error {
	switch {
	case b == '\n':
		return errChunkLine
	case d.state == chunkExtension:
		return nil
	case b == ' ' || b == '\t':
		d.state = chunkSpace
		return nil
	case d.state == chunkSpace:
		return errChunkLine
	case b == ';':
		d.state = chunkExtension
		return nil
	}
	digit, ok := hexDigit(b)
	if d.digits++; !ok || d.digits > maxChunkDigits {
		return errChunkLine
	}
	d.left = d.left<<4 | uint64(digit)
	return nil
}

func hexDigit(b byte) (value byte, ok bool) {
	switch {
	case '0' <= b && b <= '9':
		return b - '0', true
	case 'a' <= b && b <= 'f':
		return b - 'a' + 10, true
	case 'A' <= b && b <= 'F':
		return b - 'A' + 10, true
	}
	return 0, false
}

// begin begins the chunk whose line has ended.
func (d *chunkDecoder) begin() error {
	if d.digits == 0 {
		return errChunkLine
	}
	d.excess = max(0, d.excess+int64(d.line)+2-16-2*int64(d.left)) //nolint:gosec // a size beyond int64 never arrives
	d.state, d.line, d.digits = chunkData, 0, 0
	switch {
	case d.excess > maxChunkOverhead:
		return errChunkOverhead
	case d.left == 0:
		return io.EOF
	}
	return nil
}
