package telemetry

import (
	"bytes"
	"context"
	"io"
	"os"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
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
	// sinkLinger is how long a line waits for others, to be written with them.
	sinkLinger = 20 * time.Millisecond
	// sinkBatch is how many bytes are written at once at most, unless one line has more.
	sinkBatch = 64 << 10
	// sinkReport is the shortest time between two reports of the same fault of a sink.
	sinkReport = 10 * time.Second
	// consolePerSecond bounds the lines of failed requests on the console.
	consolePerSecond = 5
)

// queuedWriter passes lines on to a slow writer. Write never blocks: it drops a line if the queue
// is full. So a full disk or a stuck pipe holds no request. Run writes the lines.
type queuedWriter struct {
	to    io.Writer
	log   *zap.Logger
	lines chan []byte
	// dropped counts the lines that were not written.
	dropped atomic.Int64
	// reported is when a fault was last logged; only Run uses it.
	reported time.Time
}

func newQueuedWriter(to io.Writer, log *zap.Logger) *queuedWriter {
	return &queuedWriter{to: to, log: log, lines: make(chan []byte, sinkQueue)}
}

// Write implements io.Writer. It keeps a copy of the line.
func (q *queuedWriter) Write(line []byte) (int, error) {
	select {
	case q.lines <- bytes.Clone(line):
	default:
		q.dropped.Add(1)
	}
	return len(line), nil
}

// Run writes lines until ctx ends, and then those that are left.
func (q *queuedWriter) Run(ctx context.Context) error {
	for {
		select {
		case line := <-q.lines:
			q.linger(ctx)
			q.write(line)
		case <-ctx.Done():
			for len(q.lines) > 0 {
				q.write(<-q.lines)
			}
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
	if len(q.lines) > sinkQueue/64 {
		return
	}
	timer := time.NewTimer(sinkLinger)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// write writes a line, and those that wait after it, in one call.
func (q *queuedWriter) write(batch []byte) {
	for len(q.lines) > 0 && len(batch) < sinkBatch {
		batch = append(batch, <-q.lines...)
	}
	_, err := q.to.Write(batch)
	if err != nil {
		q.dropped.Add(int64(bytes.Count(batch, []byte{'\n'})))
	}
	if q.dropped.Load() > 0 && time.Since(q.reported) >= sinkReport {
		q.reported = time.Now()
		q.log.Warn("lines of the access log dropped", zap.Int64("lines", q.dropped.Swap(0)), zap.Error(err))
	}
}

// newSink returns the core of a sink, and what Run runs; nil: nothing.
func newSink(c AccessLogConfig) (zapcore.Core, func(context.Context) error, error) {
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
		core := newOTLPCore(c)
		return core, core.run, nil
	default:
		return zapcore.NewSamplerWithOptions(c.Log.Core(), time.Second, consolePerSecond, 0), nil, nil
	}
	q := newQueuedWriter(to, c.Log)
	return zapcore.NewCore(jsonEncoder(), zapcore.AddSync(q), zapcore.InfoLevel), q.Run, nil
}
