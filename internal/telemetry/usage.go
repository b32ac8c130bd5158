package telemetry

import (
	"bytes"

	aiv3 "github.com/envoyproxy/go-control-plane/envoy/data/ai/v3"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-gateway/sluice/internal/protofields"
	"github.com/sluice-gateway/sluice/internal/request"
)

// usageType is the end of the type URL of a TokenUsage.
var usageType = []byte("/" + string((*aiv3.TokenUsage)(nil).ProtoReflect().Descriptor().FullName()))

// usageOfAny returns the token usage in an Any.
func usageOfAny(packed []byte) request.Usage {
	if kind, value := protofields.Pair(packed); bytes.HasSuffix(kind, usageType) {
		return usageOf(value)
	}
	return request.Usage{}
}

// usageOf returns the token usage in a serialized envoy.data.ai.v3.TokenUsage. It is the zero value
// if there is none, or if Envoy has not read it to its end: the counts of such may be from the
// middle of a stream.
func usageOf(serialized []byte) request.Usage {
	var input, output, details []byte
	var status aiv3.TokenUsage_ExtractionStatus
	err := protofields.Each(serialized, func(field protowire.Number, content []byte, n uint64) error {
		switch {
		case field == 3: // input_tokens
			input = content
		case field == 4: // output_tokens
			output = content
		case field == 6: // input_token_details
			details = content
		case field == 9 && content == nil: // extraction_status
			status = aiv3.TokenUsage_ExtractionStatus(n)
		}
		return nil
	})
	if err != nil || status != aiv3.TokenUsage_COMPLETE || input == nil {
		return request.Usage{}
	}
	cached := int64(-1)
	if c := protofields.Bytes(details, 1); c != nil {
		cached = int64(wrapped(c)) // a number beyond int64 becomes negative, as one that cannot be true
	}
	return request.UsageOf(int64(wrapped(input)), int64(wrapped(output)), cached)
}
