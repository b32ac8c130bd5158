package usage

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// TestB3_ASlowLinkCarriesAllInTheEnd: after Redis was emptied, all rows together take longer than
// one call may. Each publication goes on where the last one has stopped.
func TestB3_ASlowLinkCarriesAllInTheEnd(t *testing.T) {
	t.Parallel()
	const rows = 3000
	server := redistest.Start(t)
	l := shared(t, t.TempDir(), server)
	address := strings.TrimPrefix(redistest.Slow(server, 20*time.Millisecond), "redis://")
	slow := redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1, ContextTimeoutEnabled: true, DialerRetries: 1})
	t.Cleanup(func() { _ = slow.Close() })
	l.shared.remote.client = slow
	for i := range rows {
		l.Add(Subject{Tenant: "acme", Key: fmt.Sprint("k", i%500), Model: fmt.Sprint("m", i/500)}, OfRequest(1, 0, 1, true), today)
	}
	l.shared.timeout = 150 * time.Millisecond // less than the calls take together, more than one takes
	testutil.Eventually(t, "all is published", func() bool { return l.shared.publish(t.Context(), whole) == nil && !l.shared.compare })
	if n, err := server.Client().Keys(t.Context(), keyPrefix+"hours:*").Result(); err != nil || len(n) != 1 {
		t.Fatal(n, err)
	}
	other := shared(t, t.TempDir(), server)
	if got := ask(t, other, ByTenant).Items; len(got) != 1 || got[0].Requests != rows {
		t.Errorf("another gateway answers %+v, want %d requests", got, rows)
	}
}

// ahead is a hook for a client that sees the clock of Redis ahead of that of the machine.
type ahead time.Duration

func (a ahead) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a ahead) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (a ahead) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		err := next(ctx, commands)
		for _, c := range commands {
			if told, ok := c.(*redis.Cmd); ok && err == nil { // timeScript is the only script in a pipeline
				ms, _ := told.Int64()
				told.SetVal(ms + time.Duration(a).Milliseconds())
			}
		}
		return err
	}
}

// TestB3_AClockThatIsBehind: the clock of a gateway is three days behind that of Redis and of the
// other gateways. Its answers have the usage of the others all the same, with and without an end.
func TestB3_AClockThatIsBehind(t *testing.T) {
	t.Parallel()
	const behind = 72 * time.Hour
	server := redistest.Start(t)
	other, l := shared(t, t.TempDir(), server), shared(t, t.TempDir(), server)
	l.shared.remote.client.AddHook(ahead(behind))
	now := time.Now().Add(behind)
	other.Add(acme, OfRequest(1, 0, 1, true), now)
	publish(t, other, l)
	for name, to := range map[string]time.Time{"to now": {}, "to a time": now.Add(time.Minute)} {
		a := l.Query(t.Context(), Question{From: now.Add(-time.Hour), To: to})
		if !a.Complete || len(a.Items) != 1 || a.Items[0].Requests != 1 || a.To.Before(now) {
			t.Errorf("%s: %+v; want the request of the other gateway", name, a)
		}
	}
}

// TestB3_ClocksAreCompared: a ledger tells by how much the clock of its machine differs from that
// of Redis, and nothing if it does not share.
func TestB3_ClocksAreCompared(t *testing.T) {
	t.Parallel()
	const days = 24 * time.Hour
	server := redistest.Start(t)
	for _, redisAhead := range []time.Duration{0, 3 * days, -3 * days} {
		l := shared(t, t.TempDir(), server)
		l.shared.remote.client.AddHook(ahead(redisAhead))
		l.shared.look(t.Context())
		if got := l.ClockAhead() + redisAhead; got.Abs() > time.Hour {
			t.Errorf("Redis is ahead by %v, and the clock by %v", redisAhead, l.ClockAhead())
		}
	}
	var alone *Ledger
	if alone.ClockAhead() != 0 {
		t.Error("a ledger that is not shared tells of a clock")
	}
}

// TestB3_AClockThatIsAhead: the clock of another gateway is three hours ahead. An answer until now
// has its usage, and says until which hour. An answer with an end has what was counted before it.
func TestB3_AClockThatIsAhead(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	other, l := shared(t, t.TempDir(), server), shared(t, t.TempDir(), server)
	at := time.Now().Add(3 * time.Hour)
	other.Add(acme, OfRequest(1, 0, 1, true), at)
	publish(t, other, l)
	for name, c := range map[string]struct {
		to   time.Time
		want int
	}{"to now": {want: 1}, "to a time": {time.Now().Add(time.Minute), 0}} {
		a := l.Query(t.Context(), Question{From: at.Add(-24 * time.Hour), To: c.to})
		if !a.Complete || len(a.Items) != c.want || a.To.After(at) != (c.want > 0) {
			t.Errorf("%s: %+v; want %d", name, a, c.want)
		}
	}
}

// TestB3_ADamagedSumKeepsNothingBack: a writer publishes also where the sum of its requests in
// Redis is no number.
func TestB3_ADamagedSumKeepsNothingBack(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	writer, l := shared(t, t.TempDir(), server), shared(t, t.TempDir(), server)
	now := time.Now()
	for i := range 2 {
		writer.Add(acme, OfRequest(1, 0, 1, true), now)
		writer.Add(Subject{Tenant: "second"}, OfRequest(1, 0, 1, true), now.Add(-24*time.Hour))
		publish(t, writer, l)
		if a := ask(t, l, ByTenant); len(a.Items) != 2 || a.Items[0].Requests != int64(i+1) || a.Items[1].Requests != int64(i+1) {
			t.Errorf("%+v, want %d requests of both", a, i+1)
		}
		for _, kind := range []string{kindHours, kindDays} {
			server.Client().HSet(t.Context(), hashKey(kind, now.UTC().Format(time.DateOnly), writer.writer), sumField, "x")
		}
	}
}

// refused is a hook for a client that Redis refuses with this error.
type refused string

func (r refused) Error() string { return string(r) }

func (r refused) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r refused) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(context.Context, redis.Cmder) error { return r }
}

func (r refused) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(context.Context, []redis.Cmder) error { return r }
}

// TestB3_WhatIsMissingIsASentence: some errors of Redis end with a full stop, and the sentence that
// quotes one does not end with two.
func TestB3_WhatIsMissingIsASentence(t *testing.T) {
	t.Parallel()
	l := shared(t, t.TempDir(), redistest.Start(t))
	l.shared.remote.client.AddHook(refused("NOAUTH Authentication required."))
	if got := ask(t, l).Missing; len(got) != 1 || !strings.HasSuffix(got[0], "missing: NOAUTH Authentication required.") {
		t.Errorf("missing: %q", got)
	}
}

// TestB3_ADamagedRowHidesNoOther: rows in Redis that cannot be read are missing in the answers of
// other gateways, and nothing else is. Their writer writes them again with the next request.
func TestB3_ADamagedRowHidesNoOther(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	writer, l := shared(t, t.TempDir(), server), shared(t, t.TempDir(), server)
	now, second := time.Now(), Subject{Tenant: "second"}
	writer.Add(acme, OfRequest(1, 0, 1, true), now)
	writer.Add(second, OfRequest(1, 0, 1, true), now)
	publish(t, writer, l)
	client := server.Client()
	for _, kind := range []string{kindHours, kindDays} {
		key := hashKey(kind, now.UTC().Format(time.DateOnly), writer.writer)
		for field := range client.HGetAll(t.Context(), key).Val() {
			if strings.Contains(field, "second") {
				client.HSet(t.Context(), key, field, "x")
			}
		}
	}
	if a := ask(t, l, ByTenant); len(a.Items) != 1 || a.Complete || !strings.HasPrefix(a.Missing[0], "1 row of") {
		t.Errorf("%+v, want one row, and that another one is missing", a)
	}
	writer.Add(second, OfRequest(1, 0, 1, true), now)
	publish(t, writer)
	if a := ask(t, l, ByTenant); len(a.Items) != 2 || !a.Complete {
		t.Errorf("%+v, want both rows", a)
	}
}

// narrow is a hook for a client whose calls have no more than so many arguments. Larger ones take
// longer than a call may.
type narrow int

func (n narrow) DialHook(next redis.DialHook) redis.DialHook { return next }

func (n narrow) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if len(cmd.Args()) > int(n) {
			cmd.SetErr(context.DeadlineExceeded)
			return context.DeadlineExceeded
		}
		return next(ctx, cmd)
	}
}

func (n narrow) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestB3_ANarrowLinkCarriesAJournal: a call with all rows that are left of a dead process takes too
// long. So does one with twice the rows of a call that was in time. The adoption goes on behind the
// rows that Redis has.
func TestB3_ANarrowLinkCarriesAJournal(t *testing.T) {
	t.Parallel()
	const rows = 1000
	server := redistest.Start(t)
	dir := t.TempDir()
	old, other := shared(t, dir, server), shared(t, t.TempDir(), server)
	next := shared(t, dir, server)
	for i := range rows {
		old.Add(Subject{Tenant: "acme", Key: fmt.Sprint("k", i)}, OfRequest(1, 0, 1, true), today)
	}
	flush(t, old)
	kill(old)
	next.shared.remote.client.AddHook(narrow(300))
	for range 6 { // some find out how many rows fit
		next.shared.adopt(t.Context())
	}
	if got := ask(t, other, ByTenant).Items; len(got) != 1 || got[0].Requests != rows || len(next.shared.adopted) != 1 {
		t.Errorf("another gateway answers %+v, want %d requests", got, rows)
	}
}
