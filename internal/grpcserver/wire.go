package grpcserver

import (
	"encoding/binary"
	"strconv"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
)

// preface is what a client sends first.
const preface = http2.ClientPreface

const (
	// headSize is the size of the head of a frame, and prefixSize that of the prefix of a message
	// of gRPC, in bytes.
	headSize   = 9
	prefixSize = 5
	// minFrame is the size of a payload that every peer accepts, in bytes.
	minFrame = 16 << 10
	// maxWindow is the greatest window of flow control, in bytes.
	maxWindow = 1<<31 - 1
	// defaultWindow is a window before SETTINGS, in bytes.
	defaultWindow = 65535
)

// Sizes in bytes that peers are told, or that bound them.
const (
	// streamWindow is how much of a stream may be on its way. A greater message needs updates.
	streamWindow = 1 << 20
	// connWindow is how much of all streams may be on its way.
	connWindow = 8 << 20
	// maxDataFrame is the greatest payload of a frame. Only DATA may be as long: it is not kept as
	// a whole.
	maxDataFrame = 1 << 20
	// maxControlFrame is the greatest payload of a frame that is not DATA.
	maxControlFrame = bufferSize - headSize
	// maxHeaderList is the greatest size of the headers of a stream.
	maxHeaderList = 64 << 10
	// maxWhy bounds the message of a status, of which a byte may take three: headers leave in one
	// frame.
	maxWhy = 4 << 10
	// maxStreams is how many streams of a connection may be open.
	maxStreams = 1 << 16
)

type frameHead struct {
	length uint32
	kind   http2.FrameType
	flags  http2.Flags
	stream uint32
}

// readFrameHead reads the first headSize bytes of b.
func readFrameHead(b []byte) frameHead {
	return frameHead{uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]), http2.FrameType(b[3]), http2.Flags(b[4]),
		binary.BigEndian.Uint32(b[5:]) &^ (1 << 31)}
}

func appendFrameHead(out []byte, h frameHead) []byte {
	out = append(out, byte(h.length>>16), byte(h.length>>8), byte(h.length), byte(h.kind), byte(h.flags))
	return binary.BigEndian.AppendUint32(out, h.stream)
}

func setLength(head []byte, length int) {
	head[0], head[1], head[2] = byte(length>>16), byte(length>>8), byte(length)
}

// appendSettings appends SETTINGS with the values that a client gets.
func appendSettings(out []byte) []byte {
	settings := []http2.Setting{
		{ID: http2.SettingMaxConcurrentStreams, Val: maxStreams},
		{ID: http2.SettingInitialWindowSize, Val: streamWindow},
		{ID: http2.SettingMaxFrameSize, Val: maxDataFrame},
		{ID: http2.SettingMaxHeaderListSize, Val: maxHeaderList},
	}
	out = appendFrameHead(out, frameHead{uint32(len(settings) * 6), http2.FrameSettings, 0, 0})
	for _, s := range settings {
		out = binary.BigEndian.AppendUint16(out, uint16(s.ID))
		out = binary.BigEndian.AppendUint32(out, s.Val)
	}
	return out
}

// appendNumber appends a frame whose payload is one number: WINDOW_UPDATE or RST_STREAM.
func appendNumber(out []byte, kind http2.FrameType, stream, number uint32) []byte {
	out = appendFrameHead(out, frameHead{4, kind, 0, stream})
	return binary.BigEndian.AppendUint32(out, number)
}

// appendGoAway appends a GOAWAY. last is the last stream that may be served.
func appendGoAway(out []byte, last uint32, code http2.ErrCode, why string) []byte {
	out = appendFrameHead(out, frameHead{uint32(8 + len(why)), http2.FrameGoAway, 0, 0})
	out = binary.BigEndian.AppendUint32(out, last)
	out = binary.BigEndian.AppendUint32(out, uint32(code))
	return append(out, why...)
}

// The headers of gRPC, as HPACK writes them without any state (RFC 7541).
const (
	// responseFields are ":status: 200" and "content-type: application/grpc".
	responseFields = "\x88\x0f\x10\x10application/grpc"
	// okFields are "grpc-status: 0".
	okFields = "\x00\x0bgrpc-status\x010"
)

// appendField appends a header as HPACK writes it without any state.
func appendField(out []byte, name, value string) []byte {
	out = append(appendInteger(append(out, 0), len(name)), name...)
	return append(appendInteger(out, len(value)), value...)
}

// appendInteger appends the length of a string of HPACK (RFC 7541, section 5.1).
func appendInteger(out []byte, n int) []byte {
	if n < 127 {
		return append(out, byte(n))
	}
	out = append(out, 127)
	return binary.AppendUvarint(out, uint64(n-127))
}

// appendStatus appends the headers grpc-status and grpc-message.
func appendStatus(out []byte, code codes.Code, why string) []byte {
	if code == codes.OK {
		return append(out, okFields...)
	}
	out = appendField(out, "grpc-status", strconv.Itoa(int(code)))
	if why == "" {
		return out
	}
	why = why[:min(len(why), maxWhy)]
	encoded := make([]byte, 0, len(why))
	for i := range len(why) {
		if c := why[i]; c < ' ' || c > '~' || c == '%' {
			encoded = append(encoded, '%', "0123456789ABCDEF"[c>>4], "0123456789ABCDEF"[c&15])
		} else {
			encoded = append(encoded, c)
		}
	}
	return appendField(out, "grpc-message", string(encoded))
}
