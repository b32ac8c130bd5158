package telemetry

import (
	"testing"

	datav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/request"
)

// BenchmarkEntry reads a record of the access log, and does the same by the protobuf library.
func BenchmarkEntry(b *testing.B) {
	serialised := marshal(b, served())
	b.Run("own", func(b *testing.B) {
		known := &request.Words{}
		b.ReportAllocs()
		for b.Loop() {
			if _, err := newEntry(headers.LogRequests, serialised, known); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("library", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			in := new(datav3.HTTPAccessLogEntry)
			if err := proto.Unmarshal(serialised, in); err != nil {
				b.Fatal(err)
			}
			reference(headers.LogRequests, in)
		}
	})
}
