package trace

import (
	"testing"

	"github.com/sluice-gateway/sluice/internal/request"
)

// BenchmarkNative is what a sampled native request costs beside its sending; nothing is sent, since
// nothing runs.
func BenchmarkNative(b *testing.B) {
	tracer, err := New(Config{Endpoint: "http://127.0.0.1:1", Sample: 1})
	if err != nil {
		b.Fatal(err)
	}
	q := streamed()
	b.ReportAllocs()
	for b.Loop() {
		q.Trace, _ = tracer.Inject("")
		tracer.Native(q)
	}
}

// BenchmarkUnsampled is what all others cost.
func BenchmarkUnsampled(b *testing.B) {
	tracer, err := New(Config{Endpoint: "http://127.0.0.1:1", Sample: 0.0001})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		tracer.Inject("")
		tracer.Start(request.Arrival{}, "", began)
	}
}
