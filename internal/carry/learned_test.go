package carry

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// The predecessor is told how responses begin that its requests get, because Envoy tells the
// successor. Of a response whose id has not come nothing is told yet.
func TestR7_X20_ThePredecessorIsToldHowItsResponsesBegin(t *testing.T) {
	path := filepath.Join(t.TempDir(), "carry.sock")
	server, _ := serve(t, newDispatcher(), path)
	long := strings.Repeat("x", minBegun)
	if server.Begun("a", []byte(long)) {
		t.Error("more is wanted, although there is no predecessor")
	}
	l := NewLink(path, Process{Instance: "a"}, func(time.Duration) {}, zap.NewNop())
	told := make(chan string, 10)
	l.Begun = func(id string, begin []byte) { told <- id + " " + string(begin) }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	defer func() {
		cancel()
		<-ended
	}()
	if err := server.Await(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	const created = `data: {"type":"response.created","response":{"id":"resp_1"}}` + "\n\n"
	for _, c := range []struct {
		begin       string
		more, tells bool
	}{
		{`data: {"type":"response.created","resp`, true, false}, {created, true, true},
		{created + `data: {"type":"response.output_text.delta"}`, false, true},
		{`{"object":"response","id":"resp_1"`, false, true}, {`{"id":`, true, false}, {`data: {"choices":[]}` + long, false, true},
	} {
		if more := server.Begun("a", []byte(c.begin)); more != c.more {
			t.Errorf("%s: more is wanted: %v", c.begin, more)
		}
		if c.tells {
			if got := <-told; got != "a "+c.begin {
				t.Errorf("told %s, not of %s", got, c.begin)
			}
		}
	}
	if len(told) > 0 {
		t.Errorf("told %s, too", <-told)
	}
}

// A successor knows the responses that its predecessor learns of, also those of the time in which
// no successor was connected.
func TestR7_X20_TheSuccessorKnowsLearnedResponses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "carry.sock")
	old, next, last := newDispatcher(), newDispatcher(), newDispatcher()
	core, logs := observer.New(zap.DebugLevel)
	l := NewLink(path, Process{Instance: "a"}, func(time.Duration) {}, zap.New(core))
	old.WatchResponses(l.Learned)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	defer func() {
		cancel()
		<-ended
	}()
	ticket := holdOne(t, old)
	defer ticket.Release()
	knows := func(d *dispatch.Dispatcher, n int) {
		t.Helper()
		testutil.Eventually(t, "the response is known", func() bool {
			model, at, ok := d.Holder("acme", fmt.Sprint("resp_", n))
			return ok && model == "m" && at.ID == "m-0"
		})
	}
	ticket.LearnResponse("resp_0") // while the successor starts
	_, stop := serve(t, next, path)
	knows(next, 0)
	ticket.LearnResponse("resp_1")
	knows(next, 1)
	before := logs.Len()
	stop()
	ticket.LearnResponse("resp_2")
	testutil.Eventually(t, "the connection has ended", func() bool { return logs.Len() > before })
	ticket.LearnResponse("resp_3")
	serve(t, last, path)
	knows(last, 3)
}
