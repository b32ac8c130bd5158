package routesync

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// prompts are the lengths of prompts in bytes that the benchmarks use, with how many of these bytes
// a prompt shares with every fifth one.
var prompts = []struct{ bytes, common int }{{1 << 10, 512}, {16 << 10, 4 << 10}, {64 << 10, 4 << 10}}

// placements returns n placements on 8 replicas, of prompts with 5 beginnings.
func placements(n, bytes, common int) []dispatch.Placement {
	all := make([]dispatch.Placement, n)
	for i := range all {
		all[i] = placement(uint64(i))
		all[i].Chain = chainOf(bytes, common, uint64(i%5), uint64(i))
	}
	return all
}

// BenchmarkPlaced is the cost in the path of a request.
func BenchmarkPlaced(b *testing.B) {
	for _, size := range prompts {
		b.Run(fmt.Sprint(size.bytes), func(b *testing.B) {
			var o outbox
			all := placements(64, size.bytes, size.common)
			for i := range outboxSize {
				o.add(all[i%len(all)], time.Now())
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				o.add(all[i%len(all)], time.Now())
			}
		})
	}
}

// BenchmarkEncode and BenchmarkDecode are the costs of a placement off the path of requests, in
// messages of 250.
func BenchmarkEncode(b *testing.B) {
	for _, size := range prompts {
		b.Run(fmt.Sprint(size.bytes), func(b *testing.B) {
			all := placements(250, size.bytes, size.common)
			total, n := 0, 0
			m := newBatch("gateway")
			for b.Loop() {
				m.reset("gateway")
				for i := range all {
					if m.full() {
						total += len(m.data)
						m.reset("gateway")
					}
					m.add(&all[i])
				}
				total, n = total+len(m.data), n+len(all)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/placement")
			b.ReportMetric(float64(total)/float64(n), "B/placement")
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, size := range prompts {
		b.Run(fmt.Sprint(size.bytes), func(b *testing.B) {
			m := newBatch("gateway")
			for _, p := range placements(250, size.bytes, size.common) {
				if !m.full() {
					m.add(&p)
				}
			}
			var d decoder
			n := 0
			for b.Loop() {
				decoded, err := d.decode(m.data)
				if err != nil {
					b.Fatal(err)
				}
				n += len(decoded.placements)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/placement")
		})
	}
}

// deaf is a router that forgets what it is told, with waiting tokens that always change.
type deaf struct{ n int64 }

func (d *deaf) Place(dispatch.Placement)                  {}
func (d *deaf) SetRemoteWaiting(string, map[string]int64) {}
func (d *deaf) WaitingTokens() map[string]int64 {
	tokens := map[string]int64{}
	for i := range 8 {
		d.n++
		tokens[fmt.Sprintf("10.0.0.%d:8000", i)] = d.n
	}
	return tokens
}

// BenchmarkThousandRequests is 1,000 requests a second at one gateway that another one hears, both
// in this process, over a real Redis. Each operation is a second.
func BenchmarkThousandRequests(b *testing.B) {
	for _, size := range prompts {
		b.Run(fmt.Sprint(size.bytes), func(b *testing.B) {
			servers := []*redistest.Server{redistest.Start(b)}
			quiet := func(c *Config) { c.Router = new(deaf) }
			g, other := start(b, "a", servers, quiet), start(b, "b", servers, quiet)
			testutil.Eventually(b, "both are heard", func() bool { return g.others.count() == 1 && other.others.count() == 1 })
			all := placements(1000, size.bytes, size.common)
			before, cpu, seconds := g.Stats(), cpuTime(b), 0
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for b.Loop() {
				for i := range all {
					if i%10 == 0 {
						<-tick.C
					}
					g.Placed(all[i])
				}
				seconds++
			}
			s := g.Stats()
			b.ReportMetric(float64(s.SentBytes-before.SentBytes)/float64(1000*seconds), "B/request")
			b.ReportMetric(float64(s.Sent-before.Sent)/float64(seconds), "messages/s")
			b.ReportMetric((cpuTime(b)-cpu).Seconds()*100/float64(seconds), "%cpu")
			b.ReportMetric(float64(s.Dropped), "dropped")
		})
	}
}

// cpuTime is the processor time that this process has used.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
