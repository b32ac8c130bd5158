// Package protofields reads the fields of protobuf messages in place, without an object for each.
// Packages extproc and internal/telemetry use it for the messages that each request has.
package protofields

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// Each calls yield for each field of a message, in the order of the message. For a field of bytes,
// a string or a message, content is it and not nil. It belongs to b. For an integer, a boolean or
// an enum, content is nil and n the number. All others are skipped: groups, and numbers of a fixed
// size, of which [Double] reads one. The error is that of yield, or says that b is no message.
func Each(b []byte, yield func(field protowire.Number, content []byte, n uint64) error) error {
	for len(b) > 0 {
		field, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return protowire.ParseError(size)
		}
		b = b[size:]
		var content []byte
		var n uint64
		known := true
		switch kind {
		case protowire.BytesType:
			content, size = protowire.ConsumeBytes(b)
			content = content[:len(content):len(content)]
		case protowire.VarintType:
			n, size = protowire.ConsumeVarint(b)
		default:
			known, size = false, protowire.ConsumeFieldValue(field, kind, b)
		}
		if size < 0 {
			return protowire.ParseError(size)
		}
		b = b[size:]
		if !known {
			continue
		}
		if err := yield(field, content, n); err != nil {
			return err
		}
	}
	return nil
}

// Bytes returns the last field of a message with this number, or nil. What comes before a fault of
// the message counts.
func Bytes(b []byte, number protowire.Number) (found []byte) {
	_ = Each(b, func(field protowire.Number, content []byte, _ uint64) error { // see above
		if field == number && content != nil {
			found = content
		}
		return nil
	})
	return found
}

// Double returns the last double of a message with this number. What comes before a fault of the
// message counts.
func Double(b []byte, number protowire.Number) (value float64, found bool) {
	for len(b) > 0 {
		field, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			break
		}
		b = b[size:]
		if size = protowire.ConsumeFieldValue(field, kind, b); size < 0 {
			break
		}
		if field == number && kind == protowire.Fixed64Type {
			bits, _ := protowire.ConsumeFixed64(b)
			value, found = math.Float64frombits(bits), true
		}
		b = b[size:]
	}
	return value, found
}

// Pair returns the key and the value of an entry of a map.
func Pair(entry []byte) (key, value []byte) {
	_ = Each(entry, func(field protowire.Number, content []byte, _ uint64) error { // a fault leaves out what follows it
		switch {
		case content == nil:
		case field == 1:
			key = content
		case field == 2:
			value = content
		}
		return nil
	})
	return key, value
}
