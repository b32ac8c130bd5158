package history

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/request"
)

// BenchmarkFinished is what one request costs after its end, with 1,000 models.
func BenchmarkFinished(b *testing.B) {
	t := NewTraffic(func(string) bool { return true })
	q := request.Summary{Status: 200, Stream: true, Source: "engine", Route: request.RouteManaged, FirstByte: 100 * time.Millisecond,
		Decode: time.Second, CompletionTokens: 100}
	var names [1000]string
	for i := range names {
		names[i] = fmt.Sprint("model-", i)
	}
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		q.Model = names[n%1000]
		n++
		t.Finished(q)
	}
}

// BenchmarkSample is what one sample of 1,000 busy models costs, of which there is one in ten
// seconds.
func BenchmarkSample(b *testing.B) {
	s := New(Config{Dir: b.TempDir()})
	t := NewTraffic(func(string) bool { return true })
	sample := Sample{Total: None(), Models: map[string]Values{}}
	for i := range 1000 {
		sample.Models[fmt.Sprint("model-", i)] = None()
	}
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		for i := range 5000 {
			t.Finished(request.Summary{Model: fmt.Sprint("model-", i%1000), Status: 200, Stream: true, Source: "engine", Route: request.RouteManaged,
				FirstByte: time.Duration(50+(i*n)%100) * time.Millisecond, Decode: time.Second, CompletionTokens: int64(50 + (i+n)%50)})
		}
		b.StartTimer()
		t.Take(&sample)
		if err := s.Add(noon.Add(time.Duration(n)*Step), sample); err != nil {
			b.Fatal(err)
		}
		n++
	}
	b.ReportMetric(float64(bytesOf(&s.total)+bytesOf(&s.models))/float64(n), "bytes/sample")
}
