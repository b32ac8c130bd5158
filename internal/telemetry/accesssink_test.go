package telemetry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/protobuf/proto"

	collector "go.opentelemetry.io/proto/otlp/collector/logs/v1"

	"github.com/sluice-gateway/sluice/internal/request"
)

// requestLogOf returns an access log that writes to log; nil when on is false.
func requestLogOf(log *zap.Logger, on bool) *RequestLog {
	if !on {
		return nil
	}
	return &RequestLog{log: log.Named("request"), sample: 1}
}

// written runs an access log of the config over some requests and returns what Log was told.
func written(t *testing.T, c AccessLogConfig, requests ...request.Summary) *observer.ObservedLogs {
	t.Helper()
	core, seen := observer.New(zapcore.DebugLevel)
	c.Log = zap.New(core)
	l, err := NewRequestLog(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- l.Run(ctx) }()
	for _, q := range requests {
		l.Finished(q)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	return seen
}

var (
	good   = request.Summary{ID: "good", Model: "chat", Tenant: "acme", Status: 200}
	failed = request.Summary{ID: "failed", Model: "chat", Tenant: "acme", Status: 503, Code: "no_replica"}
	gone   = request.Summary{ID: "gone", Model: "chat", Status: 499, Code: "cancelled"}
)

// TestO3_AccessLogToAFile: a file has one JSON object per line and a greatest size. A file that was
// moved away is made again.
func TestO3_AccessLogToAFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "access.log")
	c := AccessLogConfig{To: SinkFile, Path: path, Sample: 1}
	if seen := written(t, c, good, failed); seen.Len() > 0 {
		t.Errorf("%+v", seen.All())
	}
	text, err := os.ReadFile(path)
	if lines := strings.Split(strings.TrimSpace(string(text)), "\n"); err != nil || len(lines) != 2 || !strings.Contains(lines[1], `"request_id":"failed"`) {
		t.Errorf("%v: %s", err, text)
	}
	c.Path = filepath.Join(path, "none")
	if _, err := NewRequestLog(c); err == nil || !strings.Contains(err.Error(), c.Path) {
		t.Errorf("a file that cannot be made: %v", err)
	}

	r, err := openRotated(path, 100, 2)
	if err != nil {
		t.Fatal(err)
	}
	r.size = 0
	for i := range 4 {
		if _, err := r.Write(bytes.Repeat([]byte{byte('a' + i)}, 60)); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"": "ddd", ".1": "ccc", ".2": "bbb"} {
		if text, err := os.ReadFile(path + name); err != nil || !strings.HasPrefix(string(text), want) {
			t.Errorf("%s: %v, %s", name, err, text)
		}
	}
	if _, err := os.Stat(path + ".3"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("too many files: %v", err)
	}
	if err := os.Rename(path, path+".moved"); err != nil {
		t.Fatal(err)
	}
	r.checked = time.Time{} // a second later
	if _, err := r.Write([]byte("new\n")); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "new\n" {
		t.Errorf("after it was moved: %v, %s", err, text)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// TestO3_AFullDiskBreaksOneLineAlone: the lines after one that was written in part begin on a line
// of their own, but for those in a new file.
func TestO3_AFullDiskBreaksOneLineAlone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "access.log")
	r, err := openRotated(path, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	write := func(line string) {
		t.Helper()
		if n, err := r.Write([]byte(line)); n != len(line) || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	write("one\n")
	writePart(t, r)
	write("two\n")
	write("three\n")
	if text, err := os.ReadFile(path); err != nil || string(text) != "one\n---\ntwo\nthree\n" {
		t.Errorf("%v: %q", err, text)
	}
	writePart(t, r)
	if err := r.rotate(); err != nil {
		t.Fatal(err)
	}
	write("four\n")
	if text, err := os.ReadFile(path); err != nil || string(text) != "four\n" {
		t.Errorf("%v: %q", err, text)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// writePart writes a line to a full disk, which takes a part of it, and another one, of which it
// takes nothing. A pipe that nobody reads stands for the disk.
func writePart(t *testing.T, r *rotated) {
	t.Helper()
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	defer to.Close()
	disk := r.file
	defer func() { r.file = disk }()
	// Else a slow machine opens the path anew, which is no pipe.
	r.file, r.checked = to, time.Now().Add(time.Hour)
	go func() { // when the pipe has a part, it takes no more
		_, _ = from.Read(make([]byte, 1))
		_ = to.SetWriteDeadline(time.Unix(1, 0))
	}()
	for _, line := range []string{strings.Repeat("-", 1<<20) + "\n", "lost\n"} {
		if n, err := r.Write([]byte(line)); n == len(line) || err == nil {
			t.Fatalf("a full disk has taken %d bytes: %v", n, err)
		}
	}
	if _, err := disk.WriteString("---"); err != nil {
		t.Fatal(err)
	}
}

// stuck is a writer that does not return until it is freed.
type stuck struct {
	free chan struct{}
	got  bytes.Buffer
}

func (s *stuck) Write(p []byte) (int, error) {
	<-s.free
	return s.got.Write(p)
}

// TestO3_AStuckSinkHoldsNoRequest: lines beyond the queue are dropped and counted, and the others
// are written when the sink goes on.
func TestO3_AStuckSinkHoldsNoRequest(t *testing.T) {
	t.Parallel()
	core, seen := observer.New(zapcore.DebugLevel)
	to := &stuck{free: make(chan struct{})}
	q := newQueuedWriter(to, zap.New(core))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- q.Run(ctx) }()
	const lines = sinkQueue * 2
	for range lines {
		if n, err := q.Write([]byte("line\n")); n != 5 || err != nil {
			t.Fatal(n, err)
		}
	}
	close(to.free)
	cancel()
	<-done
	kept, dropped := bytes.Count(to.got.Bytes(), []byte{'\n'}), 0
	for _, e := range seen.FilterMessage("lines of the access log dropped").All() {
		dropped += int(e.ContextMap()["lines"].(int64))
	}
	if kept < sinkQueue || kept+dropped != lines {
		t.Errorf("%d lines written and %d reported as dropped, of %d", kept, dropped, lines)
	}
}

// TestO3_AStuckSinkHoldsNoStop: Run ends although the sink takes nothing, and the log says how many
// lines were not written. The sink that goes on later is not closed under the write.
func TestO3_AStuckSinkHoldsNoStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		core, seen := observer.New(zapcore.DebugLevel)
		to := &stuck{free: make(chan struct{})}
		q := newQueuedWriter(to, zap.New(core))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- q.Run(ctx) }()
		write := func(lines int) {
			for range lines {
				_, _ = q.Write([]byte("line\n")) // never fails
			}
			synctest.Wait()
		}
		write(sinkMany) // the sink is stuck with these
		write(3)
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(2 * sinkLast):
			t.Error("the stuck sink holds the stop")
		}
		all := seen.FilterMessage("lines of the access log dropped").All()
		if len(all) != 1 || all[0].ContextMap()["lines"] != int64(sinkMany+3) {
			t.Errorf("%d lines were not written, but the log says %+v", sinkMany+3, all)
		}
		close(to.free)
	})
}

// TestO3_ABurstWaitsForNothing: many lines are written at once. Few wait for more, unless it is
// just a multiple of sinkLinger, at which all are written.
func TestO3_ABurstWaitsForNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var to bytes.Buffer
		q := newQueuedWriter(&to, zap.NewNop())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- q.Run(ctx) }()
		written := func(lines int) (all int) {
			for range lines {
				_, _ = q.Write([]byte("line\n")) // never fails
			}
			synctest.Wait()
			return bytes.Count(to.Bytes(), []byte{'\n'})
		}
		if n := written(1); n != 1 {
			t.Errorf("%d lines written, although it is the moment to write", n)
		}
		time.Sleep(sinkLinger / 2)
		to.Reset()
		if n := written(1); n != 0 {
			t.Errorf("%d lines written, although others may follow", n)
		}
		if n := written(sinkMany); n < sinkMany {
			t.Errorf("%d of %d lines written", n, sinkMany+1)
		}
		cancel()
		<-done
	})
}

// TestO3_AccessLogOfSome: a sample has a share of the requests and all that failed. The console has
// only those that failed, without those whose clients have left.
func TestO3_AccessLogOfSome(t *testing.T) {
	t.Parallel()
	core, seen := observer.New(zapcore.DebugLevel)
	l := requestLogOf(zap.New(core), true)
	l.sample = 0
	for _, q := range []request.Summary{good, failed, gone} {
		l.Finished(q)
	}
	if all := seen.All(); len(all) != 1 || all[0].ContextMap()["request_id"] != "failed" {
		t.Errorf("%+v", all)
	}
	onConsole := written(t, AccessLogConfig{To: SinkConsole}, good, failed, gone).All()
	if len(onConsole) != 1 || onConsole[0].Level != zapcore.WarnLevel || onConsole[0].ContextMap()["code"] != "no_replica" {
		t.Errorf("%+v", onConsole)
	}
	many := make([]request.Summary, 100)
	for i := range many {
		many[i] = failed
	}
	if n := written(t, AccessLogConfig{To: SinkConsole}, many...).Len(); n < consolePerSecond || n > 4*consolePerSecond {
		t.Errorf("%d lines of a storm", n)
	}
	if off, err := NewRequestLog(AccessLogConfig{}); off != nil || err != nil {
		t.Errorf("off: %v, %v", off, err)
	}
}

// TestO3_AccessLogToACollector: a collector gets the fields as attributes, with the credential.
func TestO3_AccessLogToACollector(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	got := map[string]string{}
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		var in collector.ExportLogsServiceRequest
		if body, err := io.ReadAll(r.Body); err != nil || proto.Unmarshal(body, &in) != nil || r.URL.Path != "/v1/logs" || r.Header.Get("x-key") != "secret" {
			t.Errorf("%v, %s, %v", err, r.URL, r.Header)
		}
		for _, record := range in.GetResourceLogs()[0].GetScopeLogs()[0].GetLogRecords() {
			for _, a := range record.GetAttributes() {
				got[a.GetKey()] += a.GetValue().GetStringValue() + ","
			}
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(server.Close)
	c := AccessLogConfig{To: SinkOTLP, Endpoint: server.URL, Sample: 1, Headers: map[string]string{"x-key": "secret"}}
	if seen := written(t, c, good, failed); seen.Len() > 0 {
		t.Errorf("%+v", seen.All())
	}
	if got["request_id"] != "good,failed," || got["tenant"] != "acme,acme," {
		t.Errorf("%v", got)
	}
	status = http.StatusTeapot
	if all := written(t, c, good).All(); len(all) != 1 || !strings.Contains(all[0].ContextMap()["error"].(string), "418") {
		t.Errorf("%+v", all)
	}
}

// TestO3_ANameThatIsNoTextLosesNoLines: OTLP carries valid UTF-8 alone. A name with other bytes,
// which any client can send, takes no line of other requests along.
func TestO3_ANameThatIsNoTextLosesNoLines(t *testing.T) {
	t.Parallel()
	got := make(chan string, 8)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var in collector.ExportLogsServiceRequest
		if body, err := io.ReadAll(r.Body); err != nil || proto.Unmarshal(body, &in) != nil {
			t.Errorf("a body that is none: %v", err)
		}
		for _, record := range in.GetResourceLogs()[0].GetScopeLogs()[0].GetLogRecords() {
			for _, a := range record.GetAttributes() {
				if a.GetKey() == "client_request_id" || a.GetKey() == "request_id" {
					got <- a.GetValue().GetStringValue()
				}
			}
		}
	}))
	t.Cleanup(server.Close)
	broken := failed
	broken.ClientID = "a\xffb"
	seen := written(t, AccessLogConfig{To: SinkOTLP, Endpoint: server.URL, Sample: 1}, good, broken)
	close(got)
	var all []string
	for value := range got {
		all = append(all, value)
	}
	if want := "good failed a?b"; strings.Join(all, " ") != want || seen.Len() > 0 {
		t.Errorf("the collector has %q, want %q; %+v", all, want, seen.All())
	}
}

// TestO3_WhyAReplicaWasPicked: at level debug the log says what a pick chose from; at other levels
// nobody asks.
func TestO3_WhyAReplicaWasPicked(t *testing.T) {
	t.Parallel()
	core, seen := observer.New(zapcore.DebugLevel)
	q := good
	q.Replica, q.Prediction = "chat-1", request.Prediction{TTFT: 12 * time.Millisecond, Strategy: "prefix", Reason: "cached",
		Candidates: []request.Candidate{{Replica: "chat-0", Load: 8, Full: true},
			{Replica: "chat-1", Load: 2, MatchedTokens: 100, UncachedTokens: 20, WaitingTokens: 5, TTFT: 12 * time.Millisecond}}}
	PickLog(zap.New(core))(q)
	var text bytes.Buffer
	people := &textCore{LevelEnabler: zapcore.DebugLevel, out: zapcore.AddSync(&text)}
	e := seen.All()[0]
	if err := people.Write(e.Entry, e.Context); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"why=cached", "strategy=prefix", "predicted_ms=12", "chat-0: 8 running, full", "chat-1: 2 running, 12.0 ms, 100 tokens cached, 20 to compute, 5 before them"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in %s", want, text.String())
		}
	}
	if quiet, _ := observer.New(zapcore.InfoLevel); PickLog(zap.New(quiet)) != nil {
		t.Error("the log has no debug lines, and is told of picks")
	}
}
