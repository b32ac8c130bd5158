package redis

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/redistest"
)

// BenchmarkAcquire counts decisions a second: 512 callers ask for one lease each, with all limits,
// and give it back. Beside it stands what redis-benchmark gets from the same server with a script
// that does nothing but one GET, one command in a round trip. The number of models must not matter.
func BenchmarkAcquire(b *testing.B) {
	for _, models := range []int{8, 512} {
		b.Run(fmt.Sprint("models=", models), func(b *testing.B) {
			server := redistest.Start(b)
			s := stores(b, 1, Config{Timeout: 5 * time.Second}, server)[0]
			trivial := trivialScript(b, server)
			var asked, granted atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			began := time.Now()
			for range 512 {
				wg.Go(func() {
					for n := asked.Add(1); n <= int64(b.N); n = asked.Add(1) {
						c := benchClaim(int(n), models)
						if acquire(s, c)[0].Reason == admission.Granted {
							granted.Add(1)
							s.Release(c.ID, 10, false)
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			rate := float64(b.N) / time.Since(began).Seconds()
			b.ReportMetric(rate, "decisions/s")
			b.ReportMetric(trivial, "trivial-EVALSHA/s")
			b.ReportMetric(rate/trivial, "ratio")
			b.ReportMetric(100*float64(granted.Load())/float64(b.N), "%granted")
		})
	}
}

func benchClaim(n, models int) admission.Claim {
	return admission.Claim{
		ID: "bench-" + strconv.Itoa(n), Model: "model-" + strconv.Itoa(n%models), Tenant: "tenant-" + strconv.Itoa(n%100),
		Limits:       admission.Limits{MaxConcurrent: 512, TokensPerMinute: 1e9},
		TenantLimits: admission.TenantLimits{RequestsPerMinute: 1e9, TokensPerMinute: 1e9, MaxConcurrent: 1000},
		Tokens:       100, Replica: "replica-" + strconv.Itoa(n%models), ReplicaLimit: 512,
	}
}

// trivialScript is how many EVALSHA per second redis-benchmark gets.
func trivialScript(b *testing.B, server *redistest.Server) float64 {
	b.Helper()
	sha, err := server.Client().ScriptLoad(b.Context(), "return redis.call('GET', KEYS[1])").Result()
	if err != nil {
		b.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(server.Addr)
	out, err := exec.Command("redis-benchmark", "-h", host, "-p", port, "-n", "50000", "-c", "50", "--csv", "EVALSHA", sha, "1", "x").Output()
	if err != nil {
		b.Fatal(err)
	}
	rows, err := csv.NewReader(bytes.NewReader(out)).ReadAll()
	if err != nil || len(rows) < 2 || len(rows[len(rows)-1]) < 2 {
		b.Fatalf("%v: %s", err, out)
	}
	rate, err := strconv.ParseFloat(strings.TrimSpace(rows[len(rows)-1][1]), 64)
	if err != nil {
		b.Fatal(err)
	}
	return rate
}
