package telemetry

import (
	"testing"
	"time"

	datav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/internal/headers"
)

// The log of attempts tells whether a response had a length, and its Retry-After.
func TestX6_R9_HeadersOfAttempts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status  uint32
		headers map[string]string
		closes  bool
		after   time.Duration
	}{
		{200, nil, true, 0},
		{200, map[string]string{"content-length": "0"}, false, 0},
		{200, map[string]string{"transfer-encoding": "chunked"}, false, 0},
		{204, nil, false, 0},
		{304, nil, false, 0},
		{0, nil, false, 0},
		{429, map[string]string{"retry-after": "7", "content-length": "3"}, false, 7 * time.Second},
		{503, map[string]string{"retry-after": "soon"}, true, 0},
	} {
		record := served()
		record.CommonProperties.AccessLogType = datav3.AccessLogType_UpstreamEnd
		record.Response.ResponseCode, record.Response.ResponseHeaders = wrapperspb.UInt32(c.status), c.headers
		e := entryOf(t, headers.LogAttempts, record)
		if e.CloseDelimited != c.closes || e.RetryAfter != c.after {
			t.Errorf("%d %v: closes %v, retry after %v", c.status, c.headers, e.CloseDelimited, e.RetryAfter)
		}
		if e := entryOf(t, headers.LogRequests, record); e.CloseDelimited || e.RetryAfter != 0 {
			t.Errorf("%d %v: the log of requests tells %+v", c.status, c.headers, e)
		}
	}
}
