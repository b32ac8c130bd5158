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

func usageOfAny(packed []byte) request.Usage {
	if kind, value := protofields.Pair(packed); bytes.HasSuffix(kind, usageType) {
		return usageOf(value)
	}
	return request.Usage{}
}

// usageOf returns the token usage in a serialised envoy.data.ai.v3.TokenUsage. It is the zero value
// if there is none, or if a part of it that is read here has a fault. It is also zero if Envoy has
// not read the response to its end. The counts of such a response may be from the middle of a
// stream.
func usageOf(serialised []byte) request.Usage {
	var input, output, details, total []byte
	var status aiv3.TokenUsage_ExtractionStatus
	err := protofields.Each(serialised, func(field protowire.Number, content []byte, n uint64) error {
		switch {
		case content == nil:
			if field == 9 { // extraction_status
				status = aiv3.TokenUsage_ExtractionStatus(n)
			}
		case field == 3: // input_tokens
			input = content
		case field == 4: // output_tokens
			output = content
		case field == 6: // input_token_details
			details = content
		case field == 8: // provider_total_tokens
			total = content
		}
		return nil
	})
	if err != nil || status != aiv3.TokenUsage_COMPLETE {
		return request.Usage{}
	}
	if input == nil {
		return totalUsage(output, total)
	}
	cached := int64(-1)
	counted := protofields.Bytes(details, 1)
	if !isMessage(input) || !isMessage(output) || !isMessage(details) || !isMessage(counted) {
		return request.Usage{}
	}
	if counted != nil {
		cached = int64(wrapped(counted)) // a number beyond int64 becomes negative, as one that cannot be true
	}
	return request.UsageOf(int64(wrapped(input)), int64(wrapped(output)), cached)
}

// totalUsage returns the usage of a response that does not tell the tokens of its prompt.
func totalUsage(output, total []byte) request.Usage {
	if total == nil || !isMessage(total) || !isMessage(output) || wrapped(output) != 0 {
		return request.Usage{}
	}
	return request.TotalUsage(int64(wrapped(total)))
}

// isMessage reports whether b has the form of a message. Nothing is an empty message.
func isMessage(b []byte) bool {
	return protofields.Each(b, func(protowire.Number, []byte, uint64) error { return nil }) == nil
}
