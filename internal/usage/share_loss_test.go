package usage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gateway/sluice/internal/redistest"
)

// TestB3_AnEmptiedRedisGetsAdoptedJournalsAgain: what a dead process has counted is published once
// more when Redis has lost it.
func TestB3_AnEmptiedRedisGetsAdoptedJournalsAgain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	dir := t.TempDir()
	old, other := shared(t, dir, server), shared(t, t.TempDir(), server)
	next := shared(t, dir, server)
	add(old, 2)
	flush(t, old)
	kill(old)
	publish(t, next, other)
	next.shared.adopt(t.Context())
	wantRequests(t, 3, next, other)
	server.Client().FlushAll(t.Context())
	publish(t, next, other)
	next.shared.adopt(t.Context())
	wantRequests(t, 3, next, other)
}

// TestB3_ALastPublicationAfterALoss: a process that ends publishes everything also if Redis was
// emptied just before.
func TestB3_ALastPublicationAfterALoss(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	l, other := shared(t, t.TempDir(), server), shared(t, t.TempDir(), server)
	add(l, 2)
	publish(t, l)
	server.Client().FlushAll(t.Context())
	add(l, 2)
	l.shared.close(t.Context())
	wantRequests(t, 6, other)
}

// TestB3_OneLostHashIsPublishedAgain: Redis may have dropped the hours of a day and still have the
// day, or the other way round. A restart publishes what is not there, and nothing else.
func TestB3_OneLostHashIsPublishedAgain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	l := shared(t, t.TempDir(), server)
	at := today
	l.Add(acme, OfRequest(1, 0, 1, true), at)
	l.Add(acme, OfRequest(1, 0, 1, true), at.Add(-48*time.Hour))
	publish(t, l)
	lacking := func() int {
		rows, err := l.shared.missing(t.Context(), l.writer, func(read func(table)) { read(l.table) })
		if err != nil {
			t.Fatal(err)
		}
		return len(rows)
	}
	if n := lacking(); n != 0 {
		t.Errorf("%d rows are published again although Redis has all", n)
	}
	for _, kind := range []string{kindHours, kindDays} {
		key := hashKey(kind, at.UTC().Format(time.DateOnly), l.writer)
		if n := server.Client().Del(t.Context(), key).Val(); n != 1 {
			t.Fatalf("%d hashes are %s", n, key)
		}
		if n := lacking(); n != 1 {
			t.Errorf("%s: %d rows are published again, want that of the day", kind, n)
		}
		l.shared.compare = true
		publish(t, l)
		if n := server.Client().Exists(t.Context(), key).Val(); n != 1 {
			t.Errorf("%s is not there again", key)
		}
	}
}

// TestB3_ClosedGatewaysAreNotSilent: a gateway that has ended in order publishes no more, and
// answers do not lack it. Neither do they when Redis has forgotten it after a day. Its usage stays.
func TestB3_ClosedGatewaysAreNotSilent(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	gone, l := shared(t, t.TempDir(), server), shared(t, t.TempDir(), server)
	add(gone, 2)
	gone.shared.close(t.Context())
	publish(t, l)
	client := server.Client()
	heard := func(ago time.Duration, state state) {
		at := time.Now().Add(-ago).UnixMilli()
		client.HSet(t.Context(), keyPrefix+"writers", gone.writer, fmt.Sprintf("m %d %s host", at, state))
	}
	heard(time.Hour, closed)
	wantRequests(t, 3, l)
	heard(time.Hour, whole)
	if x := ask(t, l); x.Complete {
		t.Errorf("a gateway that is silent and has not ended: %+v", x)
	}
	heard(goneAfter+time.Hour, whole)
	l.shared.look(t.Context())
	if all, _, err := l.shared.remote.writers(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("Redis knows %+v, %v; want this gateway alone", all, err)
	}
	wantRequests(t, 3, l)

	heard(time.Hour, closed)
	wantRequests(t, 3, l)
	client.HDel(t.Context(), keyPrefix+"writers", gone.writer)
	wantRequests(t, 3, l)
}

// TestB3_AJournalThatIsReadLaterCountsOnce: a process learns from Redis what another one of its
// folder has spent before it has read that one's journal.
func TestB3_AJournalThatIsReadLaterCountsOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	dir := t.TempDir()
	l := shared(t, dir, server)
	l.SetBudgets([]Budget{{Tenant: acme.Tenant, Per: PerMonth, Of: OfCost, Hard: 100}})
	beside := shared(t, dir, server)
	spend(beside, 10, 1)
	publish(t, beside)
	if err := l.shared.readSpent(t.Context()); err != nil {
		t.Fatal(err)
	}
	flush(t, beside)
	spend(beside, 10, 2) // its line replaces the one before
	flush(t, beside)
	l.refreshBudgets(today)
	if all := l.Standings(); len(all) != 1 || all[0].Used != 3 {
		t.Errorf("%+v, want a cost of 3", all)
	}
}

// failing is a hook for a client whose calls with an argument of this beginning fail.
type failing string

func (f failing) of(cmd redis.Cmder) bool {
	return slices.ContainsFunc(cmd.Args(), func(arg any) bool { return strings.HasPrefix(fmt.Sprint(arg), string(f)) })
}

func (f failing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f failing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if f.of(cmd) {
			cmd.SetErr(errLink)
			return errLink
		}
		return next(ctx, cmd)
	}
}

func (f failing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		if slices.ContainsFunc(commands, f.of) {
			return errLink
		}
		return next(ctx, commands)
	}
}

var errLink = errors.New("the link is slow")

// TestB3_AnAnswerWithoutRowsSaysSo: Redis tells which writers there are, and then does not answer
// with their rows.
func TestB3_AnAnswerWithoutRowsSaysSo(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	other, l := shared(t, t.TempDir(), server), shared(t, t.TempDir(), server)
	add(other, 1)
	publish(t, other)
	l.shared.remote.client.AddHook(failing(keyPrefix + kindHours))
	if x := ask(t, l); x.Complete || !x.AsOf.IsZero() || len(x.Missing) != 1 || !strings.Contains(x.Missing[0], errLink.Error()) {
		t.Errorf("%+v", x)
	}
}

// TestB3_CallsThatFailBecomeSmall: an adoption that comes no further is given up, with calls that
// are as small as they get. Calls become large again.
func TestB3_CallsThatFailBecomeSmall(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	dir := t.TempDir()
	old, next := shared(t, dir, server), shared(t, dir, server)
	for i := range 2 * publishBatch {
		old.Add(Subject{Tenant: "acme", Key: fmt.Sprint("k", i)}, OfRequest(1, 0, 1, true), today)
	}
	flush(t, old)
	kill(old)
	working := next.shared.remote.client
	broken := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1})
	t.Cleanup(func() { broken.Close() })
	broken.AddHook(narrow(8)) // no publication is as short
	next.shared.remote.client = broken
	for range 10 {
		next.shared.adopt(t.Context())
		next.shared.report(nil)
	}
	if n := next.shared.batch; n != smallBatch || len(next.shared.adopted) != 0 {
		t.Errorf("%d rows in a call, want %d; adopted: %v", n, smallBatch, next.shared.adopted)
	}
	next.shared.remote.client = working
	next.shared.adopt(t.Context())
	if n := next.shared.batch; n != publishBatch || len(next.shared.adopted) != 1 {
		t.Errorf("%d rows in a call, want %d; adopted: %v", n, publishBatch, next.shared.adopted)
	}
}
