package usage

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-gateway/sluice/internal/redistest"
)

// shared opens a ledger that shares a Redis. It publishes when the test says so.
func shared(t *testing.T, dir string, server *redistest.Server) *Ledger {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1})
	t.Cleanup(func() { client.Close() })
	l, err := New(Config{Dir: dir, Redis: client, Keep: func() Keep { return Keep{HourlyDays: 90, DailyDays: 1095} }})
	if err != nil {
		t.Fatal(err)
	}
	standStill(l)
	t.Cleanup(func() { kill(l) })
	l.shared.silentAfter, l.shared.timeout = time.Minute, time.Minute // only the tests publish, and a machine may be slow
	return l
}

// publish publishes until everything is in Redis.
func publish(t *testing.T, all ...*Ledger) {
	t.Helper()
	for _, l := range all {
		for first := true; first || l.shared.compare; first = false {
			if err := l.shared.publish(t.Context(), whole); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// ask returns what a ledger answers for the last two days.
func ask(t *testing.T, l *Ledger, by ...Dimension) Answer {
	t.Helper()
	return l.Query(t.Context(), Question{From: time.Now().Add(-48 * time.Hour), To: time.Now(), By: by})
}

// wantRequests fails unless all ledgers answer so many requests, and the same.
func wantRequests(t *testing.T, n int64, all ...*Ledger) {
	t.Helper()
	var first []Item
	for i, l := range all {
		a := ask(t, l, ByHour, ByTenant, ByKey, ByModel)
		var sum Counts
		for _, item := range a.Items {
			sum.Add(item.Counts)
		}
		if sum.Requests != n || sum.PromptTokens != 10*n || !a.Complete {
			t.Errorf("ledger %d: %+v, want %d requests; %v", i, sum, n, a.Missing)
		}
		if i == 0 {
			first = a.Items
		} else if diff := cmp.Diff(first, a.Items); diff != "" {
			t.Errorf("ledger %d differs: %s", i, diff)
		}
	}
}

// add counts requests of this hour and of 30 hours ago.
func add(l *Ledger, n int) {
	for i := range n {
		at := today
		if i%3 == 0 {
			at = at.Add(-30 * time.Hour)
		}
		l.Add(acme, OfRequest(10, 1, 2, true), at)
		if i%2 == 0 {
			l.Add(Subject{Tenant: "beta", Model: "chat"}, OfRequest(10, 0, 0, false), at)
		}
	}
}

// Where Redis can be neither written nor read, the operator gets one reason.
func TestB3_OneReasonWhyUsageIsNotShared(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	l := shared(t, t.TempDir(), server)
	l.SetBudgets([]Budget{daily})
	server.Kill()
	l.shared.exchange(t.Context())
	if err := l.Unshared(); err == nil || strings.Contains(err.Error(), "\n") {
		t.Error(err)
	}
}

// Each gateway answers the sum of all, whatever happens to one of them or to Redis.
func TestB3_GatewaysAnswerTheirSum(t *testing.T) {
	server := redistest.Start(t)
	dirs := []string{t.TempDir(), t.TempDir()}
	a, b := shared(t, dirs[0], server), shared(t, dirs[1], server)
	add(a, 10)
	add(b, 4)
	publish(t, a, b)
	publish(t, a, b) // twice changes nothing
	wantRequests(t, 21, a, b)

	outer := t
	t.Run("kill -9", func(t *testing.T) {
		add(a, 2)
		flush(t, a)
		kill(a) // before it has published
		a = shared(outer, dirs[0], server)
		publish(t, a)
		wantRequests(t, 24, a, b)
	})
	t.Run("an emptied Redis", func(t *testing.T) {
		server.Client().FlushAll(t.Context())
		if x := ask(t, b); x.Complete || !strings.Contains(strings.Join(x.Missing, ""), "has lost the usage of gateway "+a.writer) {
			t.Errorf("%+v", x)
		}
		publish(t, b)
		add(a, 2)
		if err := a.shared.publish(t.Context(), whole); err != nil {
			t.Fatal(err)
		}
		if x := ask(t, b); x.Complete || !strings.Contains(strings.Join(x.Missing, ""), "has not published all") {
			t.Errorf("%+v", x)
		}
		publish(t, a, b)
		wantRequests(t, 27, a, b)
	})
	t.Run("an outage", func(t *testing.T) {
		server.Kill()
		add(a, 2)
		if err := a.shared.publish(t.Context(), whole); err == nil {
			t.Error("published to nobody")
		}
		x := ask(t, a)
		if x.Complete || !x.AsOf.IsZero() || !strings.Contains(strings.Join(x.Missing, ""), "Redis does not answer") {
			t.Errorf("%+v", x)
		}
		server.Restart()
		publish(t, a, b)
		wantRequests(t, 30, a, b)
	})
	t.Run("an older row comes late", func(t *testing.T) {
		a.mu.Lock()
		late := a.table.changes([]rowKey{{period{start: hourOf(today)}, acme}}, a.keep(), a.tallies)
		a.mu.Unlock()
		add(a, 2)
		publish(t, a)
		last := a.shared.marks[a.writer]
		again := publication{writer: a.writer, last: last, now: record{mark: last, state: whole}, expires: time.Now().Add(time.Hour), changes: late}
		if _, err := a.shared.remote.publish(t.Context(), again); err != nil {
			t.Fatal(err)
		}
		wantRequests(t, 33, a, b)
	})
}

// A process publishes what a dead one has left in its folder, and a gateway that is silent is
// named.
func TestB3_WhatADeadProcessHasLeft(t *testing.T) {
	server := redistest.Start(t)
	dir := t.TempDir()
	old, other := shared(t, dir, server), shared(t, t.TempDir(), server)
	next := shared(t, dir, server) // beside it, as for a restart
	add(old, 2)
	flush(t, old)
	publish(t, old, next, other)
	wantRequests(t, 3, next, other)
	add(old, 2)
	flush(t, old)
	next.shared.adopt(t.Context())
	if len(next.shared.adopted) != 0 {
		t.Error("the journal of a live process was adopted")
	}
	wantRequests(t, 6, next)
	if x := ask(t, other); !x.Complete || time.Since(x.AsOf) > time.Minute {
		t.Errorf("%+v", x)
	}
	client := server.Client()
	stale := time.Now().Add(-time.Minute).UnixMilli()
	client.HSet(t.Context(), keyPrefix+"writers", old.writer, fmt.Sprintf("m %d whole host", stale))
	if x := ask(t, other); x.Complete || x.AsOf.UnixMilli() != stale || !strings.Contains(x.Missing[0], old.writer+" on host has published nothing for 1m") {
		t.Errorf("%+v", x)
	}
	kill(old)
	next.shared.adopt(t.Context())
	if len(next.shared.adopted) != 1 || len(journals(t, dir)) != 2 {
		t.Error("not adopted, or its journal is gone")
	}
	wantRequests(t, 6, next, other)
}

// The publication of a dead process's journal may need many calls. What the own process counts does
// not wait for their end.
func TestB3_OwnRowsDoNotWaitForAJournal(t *testing.T) {
	server := redistest.Start(t)
	dir := t.TempDir()
	old, other := shared(t, dir, server), shared(t, t.TempDir(), server)
	next := shared(t, dir, server)
	add(old, 2)
	flush(t, old)
	kill(old)
	publish(t, next)
	add(next, 4)
	next.shared.adopt(t.Context())
	wantRequests(t, 9, other)
}

// Everything in Redis expires.
func TestB3_RowsInRedisExpire(t *testing.T) {
	server := redistest.Start(t)
	l := shared(t, t.TempDir(), server)
	add(l, 3)
	publish(t, l)
	client := server.Client()
	keys, err := client.Keys(t.Context(), keyPrefix+"*").Result()
	if err != nil || len(keys) < 10 { // writers, and for each of two days hours, days, spent and by, and the months
		t.Fatal(keys, err)
	}
	for _, key := range keys {
		left := client.TTL(t.Context(), key).Val()
		switch day := 24 * time.Hour; {
		case key == keyPrefix+"writers":
		case strings.Contains(key, ":spent:"):
			if left < 25*day || left > 34*day {
				t.Errorf("%s expires in %s", key, left)
			}
		case strings.Contains(key, ":hours:") && (left < 89*day || left > 93*day), !strings.Contains(key, ":hours:") && (left < 1094*day || left > 1098*day):
			t.Errorf("%s expires in %s", key, left)
		}
	}
}

// Run publishes by itself, and closes when it ends.
func TestB3_RunPublishes(t *testing.T) {
	server := redistest.Start(t)
	a, b := shared(t, t.TempDir(), server), shared(t, t.TempDir(), server)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- a.Run(ctx) }()
	add(a, 500)
	for seen := int64(0); seen != 750; time.Sleep(10 * time.Millisecond) {
		seen = 0
		for _, item := range ask(t, b, ByTenant).Items {
			seen += item.Requests
		}
	}
	add(a, 2)
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	wantRequests(t, 753, b)
	if all, _, err := b.shared.remote.writers(t.Context()); err != nil || all[a.writer].state != closed {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestB3_ASmallerCountIsPublished: a request that has used less than was estimated changes a row
// that counts no more requests than before. Redis has the row in the end, also if Redis did not
// answer first.
func TestB3_ASmallerCountIsPublished(t *testing.T) {
	server := redistest.Start(t)
	l, other := shared(t, t.TempDir(), server), shared(t, t.TempDir(), server)
	estimated, known := OfRequest(10, 0, 200, false), OfRequest(8, 0, 3, true)
	at := today
	l.Add(acme, estimated, at)
	publish(t, l)
	l.Add(acme, known.Minus(estimated), at)
	dead, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.shared.publish(dead, whole); err == nil {
		t.Error("it was published to a Redis that did not answer")
	}
	publish(t, l)
	if a := ask(t, other); len(a.Items) != 1 || a.Items[0].Counts != known {
		t.Errorf("another gateway answers %+v, want %+v", a.Items, known)
	}
}

// A budget at other gateways counts what a corrected request has used, and no more its estimate.
// Redis that was emptied, or has lost the last publications, makes no tally smaller.
func TestB3_ASmallerCountIsInBudgetsElsewhere(t *testing.T) {
	server := redistest.Start(t)
	l, other := shared(t, t.TempDir(), server), shared(t, t.TempDir(), server)
	budget := Budget{Tenant: acme.Tenant, Per: PerDay, Of: OfTokens, Hard: 100}
	other.SetBudgets([]Budget{budget})
	wantUsed := func(when string, want float64) {
		t.Helper()
		if err := other.shared.readSpent(t.Context()); err != nil {
			t.Fatal(err)
		}
		other.refreshBudgets(today)
		if all := other.Standings(); len(all) != 1 || all[0].Used != want {
			t.Errorf("%s: another gateway counts %+v, want %v", when, all, want)
		}
	}
	estimated, known := OfRequest(10, 0, 200, false), OfRequest(8, 0, 3, true)
	at := today
	l.Add(acme, estimated, at)
	publish(t, l)
	wantUsed("estimated", 210)
	l.Add(acme, known.Minus(estimated), at)
	publish(t, l)
	wantUsed("corrected", 11)
	server.Client().FlushAll(t.Context())
	l.Add(Subject{Tenant: "else"}, known, at)
	if err := l.shared.publish(t.Context(), whole); err != nil { // it has the other tenant alone
		t.Fatal(err)
	}
	wantUsed("emptied", 11)
	publish(t, l)
	wantUsed("published again", 11)
}

// A Redis that comes back from a snapshot may have the estimate of a request that was corrected
// since. The number of requests is the same, so only the mark tells that Redis has lost something.
func TestB3_ASmallerCountOutlivesAnOlderRedis(t *testing.T) {
	server := redistest.Start(t)
	l, other := shared(t, t.TempDir(), server), shared(t, t.TempDir(), server)
	other.SetBudgets([]Budget{{Tenant: acme.Tenant, Per: PerDay, Of: OfTokens, Hard: 100}})
	client := server.Client()
	estimated, known := OfRequest(10, 0, 200, false), OfRequest(8, 0, 3, true)
	at := today
	l.Add(acme, estimated, at)
	publish(t, l)
	snapshot := map[string]string{}
	for _, key := range client.Keys(t.Context(), "*").Val() {
		snapshot[key] = client.Dump(t.Context(), key).Val()
	}
	l.Add(acme, known.Minus(estimated), at)
	publish(t, l)
	for key, value := range snapshot {
		if err := client.RestoreReplace(t.Context(), key, 0, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the first notices the loss
		if err := l.shared.publish(t.Context(), whole); err != nil {
			t.Fatal(err)
		}
		if err := other.shared.readSpent(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	other.refreshBudgets(today)
	if all := other.Standings(); len(all) != 1 || all[0].Used != 11 {
		t.Errorf("another gateway counts %+v, want 11", all)
	}
}

// TestTheClockOfOneNodeCounts: the clocks of the nodes of a cluster may differ. That of the node
// with the usage is asked.
func TestTheClockOfOneNodeCounts(t *testing.T) {
	cluster := redistest.Cluster(t)
	options, err := redis.ParseURL(redistest.URL(cluster[0]))
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{options.Addr}, IsClusterMode: true})
	t.Cleanup(func() { client.Close() })
	r := &remote{client: client}
	for range 30 {
		if _, now, err := r.writers(t.Context()); err != nil || time.Since(now).Abs() > time.Hour {
			t.Fatal(now, err)
		}
	}
	if n := redistest.AskedForTime(t, cluster); n != 1 {
		t.Errorf("%d nodes were asked for the time", n)
	}
}
