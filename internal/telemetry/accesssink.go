package telemetry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/sluice-gateway/sluice/internal/beat"
)

// AccessLogConfig says where the access log goes.
type AccessLogConfig struct {
	// To is SinkStdout and so on. An empty To writes nothing.
	To Sink
	// Path, MaxSize and MaxFiles are for SinkFile: see config.AccessLog.
	Path     string
	MaxSize  int64
	MaxFiles int
	// Sample is the share of requests that have a line. A failed request always has one.
	Sample float64
	// Endpoint is the URL of the collector for SinkOTLP, Headers are sent with every call of it.
	Endpoint string
	Headers  map[string]string
	// Version is the version of this program, for SinkOTLP.
	Version string
	// Log is the log of the gateway. SinkConsole writes there, and faults of the sink are told
	// there.
	Log *zap.Logger
}

// Sink is a place for the access log.
type Sink string

// The sinks.
const (
	SinkStdout Sink = "stdout"
	SinkStderr Sink = "stderr"
	SinkFile   Sink = "file"
	SinkOTLP   Sink = "otlp"
	// SinkConsole is the log of the gateway, for failed requests alone, a few in a second.
	SinkConsole Sink = "console"
)

const (
	// sinkQueue is how many lines wait for a slow sink. Lines beyond it are dropped.
	sinkQueue = 8192
	// sinkMany is how many lines are written without waiting for more.
	sinkMany = sinkQueue / 16
	// sinkLinger is how long a line waits at most for others, to be written with them.
	sinkLinger = 100 * time.Millisecond
	// sinkBatch is how many bytes are written at once at most, unless the first line has more.
	sinkBatch = 64 << 10
	// sinkReport is the shortest time between two reports of the same fault of a sink.
	sinkReport = 10 * time.Second
	// sinkLast bounds the write of the last lines at the end.
	sinkLast = 5 * time.Second
	// consolePerSecond bounds the lines of failed requests on the console.
	consolePerSecond = 5
)

// queuedWriter passes lines on to a slow writer. Write never blocks: it drops a line if the queue
// is full. So a full disk or a stuck pipe holds no request. Run writes the lines.
type queuedWriter struct {
	to  io.Writer
	log *zap.Logger
	// wake has a value when lines wait.
	wake chan struct{}
	// reported is when a fault was last logged. Only run uses it, and spare, which is the memory of
	// the lines that were written last.
	reported time.Time
	spare    []byte

	mu sync.Mutex
	// waiting are the lines that wait, and lines is how many they are. writing is how many lines
	// run has taken and not yet written. dropped counts the lines that were not written. Guarded by
	// mu.
	waiting                 []byte
	lines, writing, dropped int
}

var errStuck = errors.New("the sink takes no lines")

func newQueuedWriter(to io.Writer, log *zap.Logger) *queuedWriter {
	return &queuedWriter{to: to, log: log, wake: make(chan struct{}, 1)}
}

// Write implements io.Writer. It keeps a copy of the line. The first line that waits wakes Run, and
// so does the one with which many wait.
func (q *queuedWriter) Write(line []byte) (int, error) {
	q.mu.Lock()
	if q.lines >= sinkQueue {
		q.dropped++
		q.mu.Unlock()
		return len(line), nil
	}
	q.waiting = append(q.waiting, line...)
	q.lines++
	wake := q.lines == 1 || q.lines == sinkMany
	q.mu.Unlock()
	if wake {
		select {
		case q.wake <- struct{}{}:
		default: // Run is woken anyway, or has ended
		}
	}
	return len(line), nil
}

// Run writes lines until ctx ends, and then those that are left. It returns at the latest sinkLast
// after ctx has ended, even if the sink is stuck in a write. The log then says how many lines were
// not written.
func (q *queuedWriter) Run(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- q.run(ctx) }()
	<-ctx.Done()
	select {
	case err := <-done:
		return err
	case <-time.After(sinkLast):
		q.mu.Lock()
		lost := q.dropped + q.writing + q.lines
		q.mu.Unlock()
		q.log.Warn("lines of the access log dropped", zap.Int("lines", lost), zap.Error(errStuck))
		return nil
	}
}

// run is Run for as long as the sink takes.
func (q *queuedWriter) run(ctx context.Context) error {
	for {
		select {
		case <-q.wake:
			q.linger(ctx)
			q.write(q.take())
		case <-ctx.Done():
			q.write(q.take())
			if c, ok := q.to.(io.Closer); ok && q.to != os.Stdout && q.to != os.Stderr {
				return c.Close()
			}
			return nil
		}
	}
}

// linger waits for more lines, unless many wait already. One write of several lines costs less than
// a wake-up and a write for each.
func (q *queuedWriter) linger(ctx context.Context) {
	q.mu.Lock()
	many := q.lines >= sinkMany
	q.mu.Unlock()
	if many {
		return
	}
	// Lines are written at whole multiples of sinkLinger, as in request.Subscribers.FinishedDelay.
	// If one is just over, the lines came with it. Another wake-up would cost more than a write.
	wait := beat.Until(sinkLinger)
	if wait > sinkLinger*9/10 {
		return
	}
	select {
	case <-time.After(wait):
	case <-q.wake: // many lines wait
	case <-ctx.Done():
	}
}

// take returns the lines that wait.
func (q *queuedWriter) take() []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	lines := q.waiting
	q.waiting, q.lines, q.writing, q.spare = q.spare[:0], 0, q.lines, lines
	return lines
}

// write writes lines, sinkBatch bytes of whole lines in a call. It reports the lines that were
// dropped.
func (q *queuedWriter) write(lines []byte) {
	lost, fault := 0, error(nil)
	for len(lines) > 0 {
		n := len(lines)
		if n > sinkBatch {
			n = max(bytes.LastIndexByte(lines[:sinkBatch], '\n'), bytes.IndexByte(lines, '\n')) + 1
		}
		count := bytes.Count(lines[:n], []byte{'\n'})
		if _, err := q.to.Write(lines[:n]); err != nil {
			lost, fault = lost+count, err
		}
		q.mu.Lock()
		q.writing -= count
		q.mu.Unlock()
		lines = lines[n:]
	}
	q.mu.Lock()
	q.dropped += lost
	dropped := q.dropped
	if dropped == 0 || time.Since(q.reported) < sinkReport {
		q.mu.Unlock()
		return
	}
	q.dropped = 0
	q.mu.Unlock()
	q.reported = time.Now()
	q.log.Warn("lines of the access log dropped", zap.Int("lines", dropped), zap.Error(fault))
}

// newSink returns what takes the lines of a sink: a core, or a writer for lines of JSON.
func newSink(c AccessLogConfig) (zapcore.Core, *queuedWriter, error) {
	var to io.Writer
	switch c.To {
	case SinkStdout:
		to = os.Stdout
	case SinkStderr:
		to = os.Stderr
	case SinkFile:
		file, err := openRotated(c.Path, c.MaxSize, c.MaxFiles)
		if err != nil {
			return nil, nil, err
		}
		to = file
	case SinkOTLP:
		return newOTLPCore(c), nil, nil
	default:
		return zapcore.NewSamplerWithOptions(c.Log.Core(), time.Second, consolePerSecond, 0), nil, nil
	}
	return nil, newQueuedWriter(to, c.Log), nil
}
