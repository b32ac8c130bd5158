package telemetry

import (
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/protofields"
	"github.com/sluice-gateway/sluice/internal/request"
)

// The fields of the text in which Envoy tells what it has read of a response, in order. Package xds
// describes them (streamReaderSource).
const (
	readTokens = iota
	readBytes
	readFirst
	readLast
	readEnded
	readFinish
	readGaps
	// readFields is the number of fields that are always there. Gaps are missing if there are none.
	readFields = readGaps
)

// reading returns what Envoy has read of the response, from the Struct with that name in the
// metadata of its log entry.
func reading(stream []byte) *request.Reading {
	var text []byte
	_ = protofields.Each(stream, func(_ protowire.Number, entry []byte, _ uint64) error { // what comes before a fault counts
		if name, value := protofields.Pair(entry); string(name) == headers.MetadataRead {
			text = protofields.Bytes(value, 3) // string_value
		}
		return nil
	})
	return ReadingOf(string(text))
}

// ReadingOf returns what Envoy has read of a response, from the text in which Envoy tells it. It
// returns nil if the text is empty or not as expected.
func ReadingOf(text string) *request.Reading {
	if text == "" {
		return nil
	}
	fields := strings.Fields(text)
	if len(fields) < readFields {
		return nil
	}
	var numbers [readFinish]int64
	for i := range numbers {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil || n < 0 {
			return nil
		}
		numbers[i] = n
	}
	r := &request.Reading{Tokens: numbers[readTokens], Bytes: numbers[readBytes], Ended: numbers[readEnded] == 1}
	if r.Tokens > 0 {
		r.First, r.Last = time.UnixMicro(numbers[readFirst]), time.UnixMicro(numbers[readLast])
	}
	if fields[readFinish] != "-" {
		r.Finish = fields[readFinish]
	}
	if len(fields) > readGaps {
		r.Gaps = gapsOf(fields[readGaps])
	}
	return r
}

// gapsOf reads a list of classes and counts, class:count,class:count. It skips what is no number.
func gapsOf(text string) map[int]int64 {
	all := map[int]int64{}
	for pair := range strings.SplitSeq(text, ",") {
		class, count, _ := strings.Cut(pair, ":")
		c, err := strconv.Atoi(class)
		n, err2 := strconv.ParseInt(count, 10, 64)
		if err == nil && err2 == nil && c >= 0 && n > 0 && n <= maxGaps {
			all[c] = n
		}
	}
	return all
}

// maxGaps is more gaps of one class than a response can have.
const maxGaps = 1 << 24
