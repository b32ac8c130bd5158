package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-gateway/sluice/internal/bench/wire"
)

// load is the clients of a measurement. It goes on until stop.
type load struct {
	row
	// ended tells clients to stop after their request. counting tells whether times are kept.
	ended, counting atomic.Bool
	// done is the number of answers.
	done    atomic.Int64
	clients sync.WaitGroup

	// mu guards the fields below.
	mu sync.Mutex
	// times are the times of requests, or to the first events of streams, in milliseconds, of those
	// that began while counting was set.
	times []float64
	fault error
}

// spreadOfBegins is the time in which all clients of a load send their first request.
const spreadOfBegins = 200 * time.Millisecond

func startLoad(ctx context.Context, r row, col column) (*load, error) {
	l := &load{row: r}
	for n := range r.clients {
		c, err := wire.Dial(col.address)
		if err != nil {
			l.ended.Store(true)
			l.clients.Wait()
			return nil, err
		}
		l.clients.Go(func() {
			defer c.Close()
			if err := l.send(ctx, c, r.request(col.model), n); err != nil {
				l.mu.Lock()
				l.fault = errors.Join(l.fault, err)
				l.mu.Unlock()
			}
		})
	}
	return l, nil
}

// send is client n of the load: it sends requests until the load ends.
func (l *load) send(ctx context.Context, c *wire.Client, r *wire.Request, n int) error {
	var times []float64
	defer func() {
		l.mu.Lock()
		l.times = append(l.times, times...)
		l.mu.Unlock()
	}()
	var every time.Duration
	if l.rate > 0 {
		every = time.Second * time.Duration(l.row.clients) / time.Duration(l.rate)
	}
	// The clients begin one after the other, so that they do not all wait for each other.
	next := time.Now().Add(max(every, spreadOfBegins) * time.Duration(n) / time.Duration(l.row.clients))
	time.Sleep(time.Until(next))
	for {
		if every > 0 {
			time.Sleep(time.Until(next))
			next = next.Add(l.pauseAfter(every))
		}
		if l.ended.Load() || ctx.Err() != nil {
			return nil
		}
		if l.random && l.stream() {
			time.Sleep(rand.N(l.pause)) //nolint:gosec // the beginning of a made-up stream
		}
		counted := l.counting.Load()
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			return err
		}
		took, err := c.Do(r)
		if err != nil {
			return err
		}
		l.done.Add(1)
		if counted {
			times = append(times, float64(took.Nanoseconds())/1e6)
		}
	}
}

// pauseAfter returns the time between two requests of a client, of which every is the mean.
func (l *load) pauseAfter(every time.Duration) time.Duration {
	if l.random {
		return rand.N(2 * every) //nolint:gosec // the pause of a made-up client
	}
	return every
}

// stop ends the load after the requests that run.
func (l *load) stop() ([]float64, error) {
	l.ended.Store(true)
	l.clients.Wait()
	return l.times, l.fault
}

// reading is what is read before and after a measurement. CPU times are in nanoseconds.
type reading struct {
	at             time.Time
	units          int64
	envoy, gateway int64
	// own is the CPU time of this process, which has the clients and the engines. busy is that of
	// the whole machine.
	own, busy int64
}

// read reads the counters and clocks of a column.
func (c *comparison) read(col column, l *load) (reading, error) {
	now := reading{at: time.Now(), units: l.done.Load()}
	if l.stream() {
		now.units = c.engines.Sent()
	}
	var err [4]error
	if col.envoyPID != 0 {
		now.envoy, err[0] = cpuClock(col.envoyPID)
	}
	if col.gatewayPID != 0 {
		now.gateway, err[1] = cpuClock(col.gatewayPID)
	}
	now.own, err[2] = cpuClock(os.Getpid())
	now.busy, err[3] = busyTime()
	return now, errors.Join(err[:]...)
}

// cpuClock returns the CPU time of a process so far, with that of all its threads, in nanoseconds.
// It reads the clock that clock_getcpuclockid(3) names.
func cpuClock(pid int) (int64, error) {
	const cpuClockOfScheduler = 2
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|cpuClockOfScheduler), &t); err != nil { //nolint:gosec // a process id fits
		return 0, fmt.Errorf("the CPU clock of process %d: %w", pid, err)
	}
	return t.Nano(), nil
}

// busyTime returns the CPU time of everything on this machine so far, in nanoseconds, in steps of
// 10 ms.
func busyTime() (int64, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	var user, nice, system, idle, iowait, irq, softirq int64
	line, _, _ := strings.Cut(string(text), "\n")
	if _, err := fmt.Sscanf(line, "cpu %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &iowait, &irq, &softirq); err != nil {
		return 0, fmt.Errorf("/proc/stat begins with %q: %w", line, err)
	}
	return (user + nice + system + irq + softirq) * 10_000_000, nil
}
