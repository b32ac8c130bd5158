package streams

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// outages are clients that send requests of all kinds while the gateway dies, hangs and is
// replaced.
type outages struct {
	*harness.Gateway
	text string // a prompt of 64 KB

	sent, served, refused, aborted atomic.Int64
}

// The gateway is killed and stopped for a while, again and again under load, and then replaced.
// Requests are answered with 200 or 503. Streams that run are whole. Nothing of all that is left,
// and Envoy is the same process. SLUICE_STORM is how many requests there are at least (default
// 1,500).
func TestE2E_B6_OutagesOfTheGatewayCostOnly503(t *testing.T) {
	t.Parallel()
	n := int64(1500)
	if v, err := strconv.ParseInt(os.Getenv("SLUICE_STORM"), 10, 64); err == nil {
		n = v
	}
	o := &outages{text: strings.Repeat("word ", 13_000), Gateway: harness.Start(t, `
envoy: {filter: module}
models:
  - {name: chat, engine: sim, variables: {max_num_seqs: 100, token_interval: 5ms, prefill_rate: 0}, replicas: {min: 1, max: 1}}
`)}
	envoys := o.envoys()
	if len(envoys) == 0 {
		t.Fatalf("no Envoy is among %v", o.Processes())
	}
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for range 12 {
		clients.Go(func() {
			for ctx.Err() == nil {
				o.sendOne(o.sent.Add(1))
			}
		})
	}
	defer clients.Wait()
	defer stop()
	faults := []func(){o.killAndLaunch, o.hang}
	for i := 0; i < 2 || o.sent.Load() < n*3/4; i++ {
		o.outage(faults[i%2])
	}
	o.outage(o.replace)
	o.await(n)
	stop()
	clients.Wait()
	t.Logf("%d requests: %d served, %d got 503, %d aborted", o.sent.Load(), o.served.Load(), o.refused.Load(), o.aborted.Load())
	if o.served.Load() < n/4 || o.refused.Load() == 0 {
		t.Error("hardly anything happened")
	}
	o.awaitNothingLeft()
	if now := o.envoys(); now != envoys {
		t.Errorf("the Envoys are %s, and were %s", now, envoys)
	}
	o.OpenStreams(2, 5).Wait()
}

// envoys returns the process ids of the Envoys.
func (o *outages) envoys() string {
	var ids []int
	for id, command := range o.Processes() {
		if program, _, _ := strings.Cut(command, " "); strings.HasSuffix(program, "/envoy") {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return ""
	}
	return fmt.Sprint(ids)
}

// await waits until that many requests have been sent.
func (o *outages) await(sent int64) {
	harness.Eventually(o.T, "the clients go on", func() error {
		if now := o.sent.Load(); now < sent {
			return fmt.Errorf("%d of %d requests were sent", now, sent)
		}
		return nil
	})
}

// outage waits for some load, opens streams, and lets the gateway have a fault. The streams are
// whole. Before they begin, they may be refused as other requests are.
func (o *outages) outage(fault func()) {
	o.await(o.sent.Load() + 200)
	var running, begun sync.WaitGroup
	for i := range 5 {
		begun.Add(1)
		running.Go(func() {
			begins := sync.OnceFunc(begun.Done)
			defer begins()
			err := errors.New("not begun")
			for end := time.Now().Add(testutil.Patience); err != nil && time.Now().Before(end); {
				err = o.ReadStream(fmt.Sprint("conversation ", i), 400, begins)
				if err != nil && !strings.HasPrefix(err.Error(), "503") {
					break
				}
			}
			if err != nil {
				o.T.Errorf("stream %d: %v", i, err)
			}
		})
	}
	begun.Wait()
	fault()
	running.Wait()
}

func (o *outages) killAndLaunch() {
	o.Kill()
	o.awaitRefusals()
	o.Launch()
	o.AwaitReady()
}

func (o *outages) hang() {
	o.Signal(syscall.SIGSTOP)
	o.awaitRefusals()
	o.Signal(syscall.SIGCONT)
	o.AwaitReady()
}

func (o *outages) replace() {
	if out, err := o.RunCommand("restart", "-c", o.Config); err != nil {
		o.T.Errorf("%v: %s", err, out)
	}
}

// awaitRefusals waits until some requests have been answered with 503.
func (o *outages) awaitRefusals() {
	before := o.refused.Load()
	harness.Eventually(o.T, "requests are refused", func() error {
		if n := o.refused.Load() - before; n < 3 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
}

// sendOne sends a small request, one of 64 KB, a stream, or one that its client aborts.
func (o *outages) sendOne(i int64) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*testutil.Patience)
	defer cancel()
	body, stream := harness.ChatBody("chat", false, 1, fmt.Sprint("question ", i)), i%4 == 2
	switch i % 4 {
	case 1:
		body = harness.ChatBody("chat", false, 1, fmt.Sprint(i, o.text))
	case 2:
		body = harness.ChatBody("chat", true, 10, fmt.Sprint("stream ", i))
	case 3:
		ctx, cancel = context.WithTimeout(ctx, rand.N(20*time.Millisecond))
		defer cancel()
	}
	a, err := o.TryPost(ctx, harness.ChatPath, body)
	switch {
	case err != nil && i%4 == 3:
		o.aborted.Add(1)
	case err != nil:
		o.T.Errorf("%d: %v", i, err)
	case a.StatusCode == 200 && stream && harness.CheckWholeStream(a.Content) != nil:
		o.T.Errorf("%d: the stream is not whole: %v", i, harness.CheckWholeStream(a.Content))
	case a.StatusCode == 200:
		o.served.Add(1)
	case a.StatusCode == 503:
		o.refused.Add(1)
		time.Sleep(20 * time.Millisecond) // as clients wait before they try again
	default:
		o.T.Errorf("%d: %s", i, a)
	}
}

// awaitNothingLeft waits until no process knows of a request.
func (o *outages) awaitNothingLeft() {
	o.AwaitIdle("chat")
	harness.Eventually(o.T, "nothing is left", func() error {
		var list struct{ Running int }
		o.Get("/api/v1/requests", &list)
		active := strings.TrimSpace(o.EnvoyAdmin("/stats?filter=^http\\..*downstream_rq_active$&usedonly"))
		for line := range strings.Lines(active) {
			if !strings.Contains(line, "http.admin.") && !strings.HasSuffix(strings.TrimSpace(line), ": 0") {
				return fmt.Errorf("Envoy has %s", active)
			}
		}
		for id, r := range o.Replicas() {
			if r.InFlight != 0 {
				return fmt.Errorf("%s still has %d", id, r.InFlight)
			}
		}
		if list.Running != 0 {
			return fmt.Errorf("%d are listed as running", list.Running)
		}
		return nil
	})
}
