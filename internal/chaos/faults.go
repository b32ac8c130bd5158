package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// fault is one thing that goes wrong.
type fault struct {
	// name is what -only says, about what the table says.
	name, about string
	// run brings the fault about and undoes what does not end by itself.
	run func(ctx context.Context, w *world) error
	// disk gives the state directory a file system of its own of this type: tmpfs or ext4.
	disk string
	// fakeClock gives Redis a clock that the fault can set.
	fakeClock bool
}

var faults = []fault{
	{name: "none", about: "none (for comparison)", run: held},
	{name: "gateway-kill", about: "gateway: `kill -9`, a new one after 1 s", run: killGateway},
	{name: "gateway-stop", about: "gateway: SIGSTOP, SIGCONT after the hold time", run: stopGateway},
	{name: "gateway-restart", about: "gateway: `sluice restart`", run: restartGateway},
	{name: "envoy-kill", about: "Envoy: `kill -9`", run: onEnvoy(kill)},
	{name: "envoy-stop", about: "Envoy: SIGSTOP, SIGCONT after the hold time", run: onEnvoy(pause)},
	{name: "replica-kill", about: "a replica of each model: `kill -9`", run: onReplicas(kill)},
	{name: "replica-stop", about: "a replica of the small model: SIGSTOP, SIGCONT after the hold time", run: stopReplica},
	{name: "redis-kill", about: "Redis: `kill -9`, a new empty one after the hold time", run: killRedis},
	{name: "redis-stop", about: "Redis: SIGSTOP, SIGCONT after the hold time", run: stopRedis},
	{name: "redis-clock", about: "Redis: its clock jumps an hour ahead, then back", fakeClock: true, run: jumpClock},
	{name: "disk-full", about: "state directory full, and the gateway is killed and started there", disk: "tmpfs", run: fillDisk},
	{name: "disk-slow", about: "state directory: every write waits (frozen file system)", disk: "ext4", run: freezeDisk},
	{name: "descriptors", about: "gateway: no file descriptors left for the hold time", run: takeDescriptors},
	{name: "idle-connections", about: "connections without a byte, as many as one process may open", run: floodConnections},
	{name: "slow-uploads", about: "200 uploads of a byte per second", run: slowUploads},
	{name: "evil-engine", about: "another model's engine answers in eight evil ways", run: evilTraffic},
	{name: "config-churn", about: "a new configuration each 100 ms", run: churnConfig},
	{name: "thousand-models", about: "1,000 models added, then removed", run: thousandModels},
}

// clockLibrary moves the clock of the process that loads it. scripts/chaos.sh makes it.
const clockLibrary = ".tools/clock.so"

// redisEnv gives Redis a clock that follows the file, if the fault sets it.
func (f fault) redisEnv(clock string) ([]string, error) {
	if !f.fakeClock {
		return nil, nil
	}
	library, err := filepath.Abs(clockLibrary)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(library); err != nil {
		return nil, fmt.Errorf("run scripts/chaos.sh first: %w", err)
	}
	return []string{"LD_PRELOAD=" + library, "CHAOS_CLOCK=" + clock}, nil
}

// held waits for the hold time.
func held(ctx context.Context, w *world) error {
	sleep(ctx, w.hold)
	return ctx.Err()
}

// pause stops a process for the hold time.
func pause(ctx context.Context, w *world, pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	err := held(ctx, w)
	if again := syscall.Kill(pid, syscall.SIGCONT); !errors.Is(again, syscall.ESRCH) { // it may have been replaced meanwhile
		err = errors.Join(err, again)
	}
	return err
}

func kill(_ context.Context, _ *world, pid int) error { return syscall.Kill(pid, syscall.SIGKILL) }

func stopGateway(ctx context.Context, w *world) error { return pause(ctx, w, w.gateway.pid()) }

func stopRedis(ctx context.Context, w *world) error { return pause(ctx, w, w.redis.pid()) }

func killGateway(ctx context.Context, w *world) error {
	if err := w.gateway.kill(); err != nil {
		return err
	}
	sleep(ctx, time.Second)
	return w.gateway.start()
}

func restartGateway(ctx context.Context, w *world) error {
	out, err := exec.CommandContext(ctx, w.sluice, "restart", "-c", w.path("sluice.yaml")).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// onEnvoy runs a fault of Envoy's process.
func onEnvoy(run func(context.Context, *world, int) error) func(context.Context, *world) error {
	return func(ctx context.Context, w *world) error {
		pid, err := w.envoyPID(ctx)
		if err != nil {
			return err
		}
		return run(ctx, w, pid)
	}
}

// onReplicas runs a fault of the first replica of each model.
func onReplicas(run func(context.Context, *world, int) error) func(context.Context, *world) error {
	return func(ctx context.Context, w *world) error {
		for _, model := range []string{"native", "managed", "small"} {
			pids, err := w.replicaPIDs(ctx, model)
			if err != nil {
				return err
			}
			if err := run(ctx, w, pids[0]); err != nil {
				return err
			}
		}
		return nil
	}
}

func stopReplica(ctx context.Context, w *world) error {
	pids, err := w.replicaPIDs(ctx, "small")
	if err != nil {
		return err
	}
	return pause(ctx, w, pids[0])
}

func killRedis(ctx context.Context, w *world) error {
	if err := w.redis.kill(); err != nil {
		return err
	}
	if err := held(ctx, w); err != nil {
		return err
	}
	return w.redis.start()
}

func jumpClock(ctx context.Context, w *world) error {
	for _, offset := range []string{"3600", "0"} {
		if err := os.WriteFile(w.path("clock"), []byte(offset), 0o600); err != nil {
			return err
		}
		if err := held(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

// fillDisk fills the file system of the state directory, kills the gateway, starts it there, and
// frees the space after the hold time.
func fillDisk(ctx context.Context, w *world) error {
	full := filepath.Join(w.path("state"), "full")
	f, err := os.Create(full)
	if err != nil {
		return err
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := killGateway(ctx, w); err != nil {
		return err
	}
	if err := held(ctx, w); err != nil {
		return err
	}
	return os.Remove(full)
}

// freezeDisk freezes the file system of the state directory for the hold time: each write waits.
func freezeDisk(ctx context.Context, w *world) error {
	dir, err := os.Open(w.path("state"))
	if err != nil {
		return err
	}
	defer dir.Close()
	const freeze, thaw = 0xC0045877, 0xC0045878 // FIFREEZE and FITHAW of linux/fs.h
	if err := unix.IoctlSetInt(int(dir.Fd()), freeze, 0); err != nil {
		return fmt.Errorf("freeze: %w", err)
	}
	err = held(ctx, w)
	return errors.Join(err, unix.IoctlSetInt(int(dir.Fd()), thaw, 0))
}

// takeDescriptors lowers the gateway's limit of open files to what it has open.
func takeDescriptors(ctx context.Context, w *world) error {
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", w.gateway.pid()))
	if err != nil {
		return err
	}
	var before unix.Rlimit
	limit := unix.Rlimit{Cur: uint64(len(open))}
	if err := unix.Prlimit(w.gateway.pid(), unix.RLIMIT_NOFILE, nil, &before); err != nil {
		return err
	}
	limit.Max = before.Max
	if err := unix.Prlimit(w.gateway.pid(), unix.RLIMIT_NOFILE, &limit, nil); err != nil {
		return err
	}
	err = held(ctx, w)
	return errors.Join(err, unix.Prlimit(w.gateway.pid(), unix.RLIMIT_NOFILE, &before, nil))
}

// floodConnections opens connections from several addresses that never send a byte.
func floodConnections(ctx context.Context, w *world) error {
	var flood []net.Conn
	defer func() {
		for _, c := range flood {
			c.Close()
		}
	}()
	for i := range 20_000 {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i%100))}, Timeout: time.Second}
		c, err := d.DialContext(ctx, "tcp", strings.TrimPrefix(w.url, "http://"))
		if err != nil {
			break // refused, or this process has no descriptors left
		}
		flood = append(flood, c)
	}
	return held(ctx, w)
}

// slowUploads sends requests whose bodies grow by a byte per second.
func slowUploads(ctx context.Context, w *world) error {
	ctx, cancel := context.WithTimeout(ctx, 2*w.hold)
	defer cancel()
	var uploads sync.WaitGroup
	for range 200 {
		uploads.Go(func() {
			c, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
			if err != nil {
				return
			}
			defer c.Close()
			fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: chaos\r\nContent-Type: application/json\r\nContent-Length: 4000000\r\n\r\n{")
			for sleep(ctx, time.Second) {
				if _, err := c.Write([]byte(" ")); err != nil {
					return
				}
			}
		})
	}
	uploads.Wait()
	return nil
}

// evilTraffic has the engine that misbehaves answer requests for the hold time.
func evilTraffic(ctx context.Context, w *world) error {
	ctx, cancel := context.WithTimeout(ctx, w.hold)
	defer cancel()
	askEvil(ctx, w)
	return nil
}

// churnConfig writes another configuration each 100 ms, for the hold time.
func churnConfig(ctx context.Context, w *world) error {
	end := time.Now().Add(w.hold)
	for n := 0; time.Now().Before(end) && ctx.Err() == nil; n++ {
		if err := w.rewriteConfig(fmt.Sprintf("  - {name: churn-%d, launcher: upstream, upstreams: [{url: %s}]}\n", n, w.evil.url())); err != nil {
			return err
		}
		resp, err := http.Post(w.admin+"/api/v1/reload", "application/json", strings.NewReader("{}"))
		if err != nil {
			return err
		}
		if err := discard(resp.Body); err != nil {
			return err
		}
		sleep(ctx, 100*time.Millisecond)
	}
	return w.rewriteConfig("")
}

// thousandModels adds a thousand models, waits, and removes them.
func thousandModels(ctx context.Context, w *world) error {
	var models strings.Builder
	for n := range 1000 {
		fmt.Fprintf(&models, "  - {name: model-%d, engine: sim, replicas: {min: 0, max: 1}}\n", n)
	}
	for _, text := range []string{models.String(), ""} {
		if err := w.rewriteConfig(text); err != nil {
			return err
		}
		if err := held(ctx, w); err != nil {
			return err
		}
	}
	return nil
}
