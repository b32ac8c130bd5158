package filter

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// BenchmarkRequest measures the CPU time of Envoy for a request, in turn without the filter and
// with it. The gateway of the benchmark answers at once. thread-µs is the part of the filter's own
// thread.
func BenchmarkRequest(b *testing.B) {
	for _, size := range []int{200, 64 << 10, 400 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			bed := up(b, options{limit: 4 << 20})
			bed.decideAll.Store(true)
			body := bytes.Repeat([]byte("x"), size)
			bed.load(b, "/off", body, 200)
			bed.load(b, "/", body, 200)
			var plain, filtered, thread int64
			for b.Loop() {
				plain += bed.cost(b, "/off", body)
				before := bed.cpu(b, "sluice")
				filtered += bed.cost(b, "/", body)
				thread += bed.cpu(b, "sluice") - before
			}
			per := float64(b.N) * benchRequests * 1000
			b.ReportMetric(float64(plain)/per, "plain-µs")
			b.ReportMetric(float64(filtered)/per, "filter-µs")
			b.ReportMetric(float64(thread)/per, "thread-µs")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// benchRequests is how many requests one turn has, benchClients how many of them run at once.
const benchRequests, benchClients = 1000, 16

// cost is the CPU time of Envoy in nanoseconds for a turn.
func (b *testbed) cost(t testing.TB, path string, body []byte) int64 {
	before := b.cpu(t, "")
	b.load(t, path, body, benchRequests)
	return b.cpu(t, "") - before
}

func (b *testbed) load(t testing.TB, path string, body []byte, n int) {
	var clients sync.WaitGroup
	for range benchClients {
		clients.Go(func() {
			for range n / benchClients {
				res, err := b.client.Post(b.url+path, "application/json", bytes.NewReader(body))
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, res.Body)
				if res.Body.Close(); res.StatusCode != http.StatusOK {
					t.Errorf("status %d", res.StatusCode)
					return
				}
			}
		})
	}
	clients.Wait()
}

// cpu is the CPU time in nanoseconds of the threads of Envoy whose name begins so.
func (b *testbed) cpu(t testing.TB, name string) (total int64) {
	for _, thread := range b.threads(t, name) {
		stat, _ := os.ReadFile(thread + "/schedstat")
		if len(stat) == 0 {
			continue // it has ended
		}
		ns, err := strconv.ParseInt(strings.Fields(string(stat))[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		total += ns
	}
	return total
}

// threads returns the directories in /proc of the threads of Envoy whose name begins so.
func (b *testbed) threads(t testing.TB, name string) (found []string) {
	all, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", b.process.Pid))
	if err != nil || len(all) == 0 {
		t.Fatal("Envoy has no threads: ", err)
	}
	for _, thread := range all {
		if comm, _ := os.ReadFile(thread + "/comm"); strings.HasPrefix(string(comm), name) {
			found = append(found, thread)
		}
	}
	return found
}

// decideAtOnce answers each request with Go, as long as c lives.
func decideAtOnce(c net.Conn) {
	in, out := make([]byte, 1<<20), []byte(nil)
	var have int
	for {
		n, err := c.Read(in[have:])
		if err != nil {
			return
		}
		have += n
		at := 0
		for out = out[:0]; have-at >= 16; {
			size := 16 + int(binary.LittleEndian.Uint32(in[at:]))
			if have-at < size {
				break
			}
			if in[at+4] == frBody || in[at+4] == frHeaders && in[at+5] == 1 {
				out = append(out, encode(frGo, 0, binary.LittleEndian.Uint64(in[at+8:]), goFrame(toModel, nil, pairs{{"tenant", "acme"}}, ""))...)
			}
			at += size
		}
		have = copy(in, in[at:have])
		if _, err := c.Write(out); err != nil {
			return
		}
	}
}
