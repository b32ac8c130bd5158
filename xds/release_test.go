package xds

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	accesslog "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/routes"
)

// A request that is sent at the moment of OnAck never fails.
func releasedOnAck(t *testing.T, g *gateway) {
	a := newEngine(t, "a")
	failed := 0
	release := func(model, id string) {
		g.settle(t, model, replica(id, a))
		if got := g.chat(t, model, a.String()); got.StatusCode != 200 {
			failed++
		}
	}
	for i := range 100 {
		// a cluster that did not exist
		release("new-"+strconv.Itoa(i), "new-0")
	}
	// a cluster that was empty
	for i := range 100 {
		g.settle(t, "refilled")
		release("refilled", fmt.Sprintf("refilled-%d", i))
	}
	if failed > 0 {
		t.Errorf("%d of 200 failed", failed)
	}
}

func loggedRequest(t *testing.T, g *gateway) {
	a := newEngine(t, "a")
	g.settle(t, "log", replica("log-0", a))
	got := g.chat(t, "log", a.String(), "x-test-tenant", "acme", "x-test-stream", "1")
	e := g.log.wait(t, got.Header.Get(headers.RequestID))
	c := e.GetCommonProperties()
	if c.GetCustomTags()[headers.TagReplica] != "log-0" || c.GetUpstreamCluster() != "model/log" || c.GetRouteName() != routes.Stream ||
		c.GetUpstreamRequestAttemptCount() != 1 || c.GetUpstreamRemoteAddress().GetSocketAddress().GetAddress() != "127.0.0.1" ||
		c.GetAccessLogType() != accesslog.AccessLogType_DownstreamEnd || c.GetResponseFlags() != nil {
		t.Errorf("served by %v", c)
	}
	first, err := strconv.Atoi(c.GetCustomTags()[headers.TagFirstByte])
	if took := c.GetDuration().AsDuration(); err != nil || first <= 0 || time.Duration(first)*time.Microsecond > took {
		t.Errorf("first byte after %q of %v", c.GetCustomTags()[headers.TagFirstByte], took)
	}
	if got := c.GetMetadata().GetFilterMetadata()[headers.Metadata].GetFields()["tenant"].GetStringValue(); got != "acme" {
		t.Errorf("ext_proc's word is lost: %q", got)
	}
	if r := e.GetResponse(); r.GetResponseCode().GetValue() != 200 || r.GetResponseCodeDetails() != "via_upstream" ||
		r.GetResponseBodyBytes() != uint64(len(got.body)) {
		t.Errorf("response %v", r)
	}
	if n := len(g.log.of(headers.LogAttempts, got.Header.Get(headers.RequestID))); n != 0 {
		t.Errorf("a request without a retry has %d entries in the log of attempts: %v", n, g.log.of(headers.LogAttempts, got.Header.Get(headers.RequestID)))
	}
}

// The gateway learns at once which replica failed and which one has the request now.
func loggedAttempts(t *testing.T, g *gateway) {
	a, dead, dropping := newEngine(t, "a"), deadAddress(t), droppingEngine(t, 10)
	g.settle(t, "attempts", replica("attempts-0", dead), replica("attempts-1", dropping), replica("attempts-2", a))
	got := g.chat(t, "attempts", list(dead, dropping, a))
	got.saw(t)
	id := got.Header.Get(headers.RequestID)
	var entries []*accesslog.HTTPAccessLogEntry
	eventually(t, "the attempts are in the log", func() bool {
		entries = g.log.of(headers.LogAttempts, id)
		return len(entries) >= 5
	})
	want := []string{
		"attempts-0 UpstreamEnd upstream_connection_failure:true",
		"attempts-1 UpstreamPoolReady <nil>",
		"attempts-1 UpstreamEnd upstream_connection_termination:true",
		"attempts-2 UpstreamPoolReady <nil>",
		"attempts-2 UpstreamEnd <nil>",
	}
	for i, e := range entries {
		c := e.GetCommonProperties()
		got := fmt.Sprintf("%s %s %v", c.GetCustomTags()[headers.TagReplica], c.GetAccessLogType(), c.GetResponseFlags())
		if i >= len(want) || got != want[i] {
			t.Errorf("entry %d: %s", i, got)
		}
	}
	if e := g.log.wait(t, id); e.GetCommonProperties().GetUpstreamRequestAttemptCount() != 3 {
		t.Errorf("%d attempts", e.GetCommonProperties().GetUpstreamRequestAttemptCount())
	}
}
