package admin

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/history"
	"github.com/sluice-gateway/sluice/internal/request"
)

// eventStream reads events of a response.
type eventStream struct {
	t     *testing.T
	lines *bufio.Scanner
}

// next returns the next event of a kind and its data.
func (s eventStream) next(kind string) map[string]any {
	s.t.Helper()
	for event := ""; s.lines.Scan(); {
		line := s.lines.Text()
		if name, ok := strings.CutPrefix(line, "event: "); ok {
			event = name
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok || event != kind {
			continue
		}
		var v map[string]any
		if err := json.Unmarshal([]byte(data), &v); err != nil {
			s.t.Fatalf("%s: %v", data, err)
		}
		return v
	}
	s.t.Fatalf("the stream ended without an event %q: %v", kind, s.lines.Err())
	return nil
}

// watch serves the config and returns a stream of its events.
func watch(t *testing.T, c Config) eventStream {
	t.Helper()
	c.Listen = ""
	server := httptest.NewServer(New(c))
	t.Cleanup(server.Close)
	response, err := http.Get(server.URL + "/api/v1/events")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	if got := response.Header.Get("Content-Type"); got != "text/event-stream" || response.StatusCode != 200 {
		t.Fatalf("%d %s", response.StatusCode, got)
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	return eventStream{t, lines}
}

func TestO10_EventsHaveWhatHasChanged(t *testing.T) {
	c := newConfig()
	c.Events = NewEvents()
	t.Cleanup(func() { c.Events.End(time.Second) })
	var fleet atomic.Pointer[engines.Snapshot]
	fleet.Store(newSnapshot())
	c.Fleet = fleet.Load
	var bad atomic.Bool
	c.Conditions = func() []condition.Condition {
		all := []condition.Condition{condition.OK(condition.ConfigRejected, "", "AsExpected", "")}
		if bad.Load() {
			all = append(all, condition.Fault(condition.NodeLost, "n1", "NoAnswer", "Node n1 does not answer."))
		}
		return all
	}
	s := watch(t, c)
	first := s.next("state")
	if first["whole"] != true || len(first["models"].([]any)) != 3 || len(first["replicas"].([]any)) != 3 || len(first["conditions"].([]any)) != 1 {
		t.Errorf("first state: %v", first)
	}
	if got := first["totals"].(map[string]any); got["in_flight"] != 4.0 || got["ready"] != 2.0 || got["replicas"] != 3.0 {
		t.Errorf("totals: %v", got)
	}
	models := get(New(c), "/api/v1/models")
	var whole map[string]any
	if err := json.Unmarshal(models.Body.Bytes(), &whole); err != nil {
		t.Fatal(err)
	}
	if want, got := whole["models"].([]any)[0], first["models"].([]any)[0]; string(encode(want)) != string(encode(got)) {
		t.Errorf("the event has the model %s, /api/v1/models has %s", encode(got), encode(want))
	}

	smaller := newSnapshot()
	smaller.Models["chat"].Replicas = smaller.Models["chat"].Replicas[:1]
	delete(smaller.Models, "empty")
	bad.Store(true)
	fleet.Store(smaller)
	second := s.next("state")
	if second["whole"] != false || len(second["models"].([]any)) != 1 || len(second["replicas"].([]any)) != 0 || len(second["conditions"].([]any)) != 1 {
		t.Errorf("second state: %v", second)
	}
	if got := string(encode(second["removed"])); got != `{"conditions":[],"models":["empty"],"replicas":[{"id":"chat-1","model":"chat"}]}` {
		t.Errorf("removed: %s", got)
	}
	bad.Store(false)
	if got := string(encode(s.next("state")["removed"])); got != `{"conditions":[{"subject":"n1","type":"NodeLost"}],"models":[],"replicas":[]}` {
		t.Errorf("removed conditions: %s", got)
	}
}

func TestO10_EventsOfRequestsAndSamples(t *testing.T) {
	c := newConfig()
	c.Events = NewEvents()
	t.Cleanup(func() { c.Events.End(time.Second) })
	c.Events.Finished(request.Summary{ID: "before anybody watched"})
	s := watch(t, c)
	s.next("state")
	for range maxEventRequests + 7 {
		c.Events.Finished(request.Summary{ID: "r-1", Status: 200})
	}
	v := s.next("requests")
	all := v["requests"].([]any)
	if len(all) != maxEventRequests || v["dropped"] != 7.0 || all[0].(map[string]any)["request_id"] != "r-1" {
		t.Errorf("requests: %d, dropped %v, %v", len(all), v["dropped"], all[0])
	}
	values := history.None()
	values[history.Queued], values[history.TTFTp50] = 3, 12.25
	c.Events.Sampled(noon, history.Sample{Total: values, Models: map[string]history.Values{"chat": values}})
	v = s.next("sample")
	if got := string(encode(v["values"])); v["at"] != "2030-05-04T12:00:00Z" || len(v["names"].([]any)) != 12 ||
		got != `{"":[null,null,3,null,12.25,null,null,null,null,null,null,null],"chat":[null,null,3,null,12.25,null,null,null,null,null,null,null]}` {
		t.Errorf("sample: %v", v)
	}
}

func TestO10_EventsEndWithTheListener(t *testing.T) {
	c := newConfig()
	c.Events = NewEvents()
	s := watch(t, c)
	s.next("state")
	c.Events.End(10 * time.Second)
	s.next("end")
	for s.lines.Scan() {
	}
	if err := s.lines.Err(); err != nil {
		t.Errorf("the response has no proper end: %v", err)
	}
	if w := get(New(c), "/api/v1/events"); w.Code != 503 {
		t.Errorf("after the end: %d %s", w.Code, w.Body)
	}
	c.Events.End(time.Second) // a second call does nothing
}

// TestEventsEndWithTheToken: a client whose token is removed gets no further events.
func TestEventsEndWithTheToken(t *testing.T) {
	c := newConfig()
	c.Events = NewEvents()
	var access atomic.Pointer[Access]
	c.Access = access.Load
	s := watch(t, c)
	s.next("state")
	access.Store(newAccess())
	c.Events.Sampled(noon, history.Sample{})
	for s.lines.Scan() {
		if s.lines.Text() == "event: sample" {
			t.Fatal("a client without access gets events")
		}
	}
	if err := s.lines.Err(); err != nil {
		t.Errorf("the response has no proper end: %v", err)
	}
}

func TestO10_NobodyWatchesCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConfig()
		c.Events = NewEvents()
		var looks atomic.Int64
		c.Conditions = func() []condition.Condition { looks.Add(1); return nil }
		h := New(c).(*handler)
		first, _ := c.Events.join(h.present)
		second, _ := c.Events.join(h.present)
		time.Sleep(10*time.Second + time.Millisecond)
		if n := looks.Load(); n != 11 {
			t.Errorf("two clients cost %d encodings in 10 s, want 11", n)
		}
		c.Events.leave(first)
		c.Events.leave(second)
		synctest.Wait() // the goroutine has ended, else synctest fails
		before := looks.Load()
		c.Events.Finished(request.Summary{})
		c.Events.Sampled(noon, history.Sample{})
		time.Sleep(time.Minute)
		if n := looks.Load(); n != before || len(c.Events.finished) > 0 {
			t.Errorf("%d encodings and %d requests without a client", n-before, len(c.Events.finished))
		}
		if w, fault := c.Events.join(h.present); fault != nil { // and it begins again
			t.Error(fault)
		} else if data := string(<-w.frames); !strings.HasPrefix(data, `event: state`+"\n"+`data: {"whole":true`) {
			t.Errorf("first event after a pause: %.60s", data)
		} else {
			c.Events.leave(w)
		}
	})
}

func TestO10_ASlowClientIsDropped(t *testing.T) {
	c := newConfig()
	c.Events = NewEvents()
	h := New(c).(*handler)
	slow, _ := c.Events.join(h.present)
	<-slow.frames // the state
	for range maxFrames + 1 {
		c.Events.Sampled(noon, history.Sample{})
	}
	n := 0
	for range slow.frames { // ends, because the client was dropped
		n++
	}
	if n != maxFrames || c.Events.watching.Load() != 0 {
		t.Errorf("%d events wait for a dropped client, %d clients", n, c.Events.watching.Load())
	}
	c.Events.leave(slow)
}

func TestO10_EventsHaveABoundOfClients(t *testing.T) {
	c := newConfig()
	c.Events = NewEvents()
	h := New(c).(*handler)
	var all []*watcher
	for range maxWatchers {
		w, fault := c.Events.join(h.present)
		if fault != nil {
			t.Fatal(fault)
		}
		all = append(all, w)
	}
	if w := get(h, "/api/v1/events"); w.Code != 429 {
		t.Errorf("one client more: %d %s", w.Code, w.Body)
	}
	for _, w := range all {
		c.Events.leave(w)
	}
}

func TestO10_HeadOfEvents(t *testing.T) {
	c := newConfig()
	c.Events = NewEvents()
	w := httptest.NewRecorder()
	r := httptest.NewRequest("HEAD", "/api/v1/events", nil)
	r.Host = "localhost"
	New(c).ServeHTTP(w, r)
	if body, _ := io.ReadAll(w.Body); w.Code != 200 || len(body) > 0 || c.Events.watching.Load() != 0 {
		t.Errorf("HEAD: %d %s", w.Code, body)
	}
}
