package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// TestEventsOfANewMaster: after the address of Redis has moved to another server, gateways hear
// each other there, although the subscriptions at the old server are still open.
func TestEventsOfANewMaster(t *testing.T) {
	t.Parallel()
	before, after := redistest.Start(t), redistest.Start(t)
	address := redistest.Front(before)
	var all []*Store
	for _, name := range []string{"gw0", "gw1"} {
		s, err := New(Config{Server: Server{URL: address.URL()}, Gateway: name, Timeout: 500 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		runStore(t, s)
		all = append(all, s)
	}
	bothShare := func() bool { return all[0].Status().Up && all[1].Status().Up && all[1].Gateways() == 2 }
	eventually(t, "both share the old server", bothShare)
	heard := &recordingSubscriber{}
	all[1].Subscribe(heard)
	address.Move(after)
	if err := before.Client().ClientKillByFilter(t.Context(), "TYPE", "normal").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both share the new server", func() bool {
		n, _ := after.Client().ZCard(t.Context(), "{sluice}:gateways").Result()
		return n == 2 && bothShare()
	})
	waitUntilHeard(t, all, heard, "a", "b")
}

// waitUntilHeard waits until the second store hears what the first one releases. granted and
// waiting are the ids of their leases.
func waitUntilHeard(t *testing.T, all []*Store, heard *recordingSubscriber, granted, waiting string) {
	t.Helper()
	eventually(t, "one hears what the other releases", func() bool {
		if acquire(all[0], limited(granted, 1))[0].Reason == admission.Granted {
			acquire(all[1], limited(waiting, 1))
			all[0].Release(granted, 0, false)
		}
		time.Sleep(20 * time.Millisecond) // the time that an event takes at most
		return heard.freed("chat") > 0
	})
}

// twoJoined returns two gateways that share a server, without their loops.
func twoJoined(t *testing.T, server *redistest.Server) (all []*Store) {
	t.Helper()
	for _, name := range []string{"gw0", "gw1"} {
		s, err := New(Config{Server: Server{URL: redistest.URL(server)}, Gateway: name, Timeout: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.redis.Close() })
		joinNow(t, s)
		all = append(all, s)
	}
	return all
}

// TestAWriteThatANewMasterLacks: of the writes of one gateway, the last one is lost, and another
// gateway writes as much before the first one is back. The first one notices it all the same.
func TestAWriteThatANewMasterLacks(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := twoJoined(t, server)
	if err := server.Client().Save(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	made := limited("task", 4)
	made.Task = &admission.TaskClaim{Key: "key", Lease: time.Minute, Lifetime: time.Hour}
	answer := make(chan []admission.Verdict, 1)
	all[1].Acquire([]admission.Claim{made}, func(v []admission.Verdict) { answer <- v })
	if err := all[1].sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantReasons(t, <-answer, admission.Granted)
	server.Kill()
	server.Restart()
	for _, s := range all {
		s.markUnavailable(errReply)
		joinNow(t, s)
	}
	if _, err := all[1].Task(t.Context(), "acme", "task"); err != nil {
		t.Error("the task that was lost:", err)
	}
}

// TestAReleaseThatANewMasterLacks: a lease that has ended holds nothing at a new master that still
// has it.
func TestAReleaseThatANewMasterLacks(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, err := New(Config{Server: Server{URL: redistest.URL(server)}, Gateway: "gw0", Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.redis.Close() })
	joinNow(t, s)
	sync := func(claims ...admission.Claim) []admission.Verdict {
		answer := make(chan []admission.Verdict, 1)
		s.Acquire(claims, func(v []admission.Verdict) { answer <- v })
		if err := s.sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		return <-answer
	}
	wantReasons(t, sync(limited("a", 2), limited("kept", 2)), admission.Granted, admission.Granted)
	if err := server.Client().Save(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	s.Release("a", 0, false)
	wantReasons(t, sync(limited("b", 2)), admission.Granted)
	s.Release("b", 0, false)
	server.Kill()
	server.Restart()
	s.markUnavailable(errReply)
	joinNow(t, s)
	wantReasons(t, sync(limited("c", 2), limited("d", 2)), admission.Granted, admission.ModelConcurrency)
	if len(s.ended) != 2 {
		t.Fatalf("remembered: %v", s.ended)
	}
	s.ended[0].at = time.Now().Add(-2 * s.cfg.Lease)
	if s.renewLeases(); len(s.ended) != 1 {
		t.Errorf("remembered after its lease: %v", s.ended)
	}
}

// joinNow makes a store share that no Run serves.
func joinNow(t *testing.T, s *Store) {
	t.Helper()
	eventually(t, "it shares", func() bool {
		pause := s.rejoin(t.Context())
		time.Sleep(pause)
		return pause == 0
	})
}

// TestFailoverOfACluster: gateways share again soon after a master of a cluster has died and its
// replica has taken its place.
func TestFailoverOfACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	replica := redistest.Replica(t, cluster)
	s := stores(t, 1, Config{}, cluster...)[0]
	wantReasons(t, acquire(s, limited("a", 1)), admission.Granted)
	eventually(t, "the replica has the lease", func() bool {
		info, err := replica.Client().Info(t.Context(), "keyspace").Result()
		return err == nil && strings.Contains(info, "db0:keys=")
	})
	cluster[0].Kill()
	eventually(t, "the store is lost", func() bool { return !s.Status().Up })
	eventually(t, "the store is shared again", func() bool { return s.Status().Up })
	wantReasons(t, acquire(s, limited("b", 1)), admission.ModelConcurrency)
	s.Release("a", 0, false)
	wantReasons(t, acquire(s, limited("b", 1)), admission.Granted)
	// A goroutine of the library may dial the dead server once a second, until the server answers.
	cluster[0].Restart()
	time.Sleep(2 * time.Second)
}

// TestAnEndOfATaskThatANewMasterLacks: a task that has ended holds nothing at a new master that
// still has it, or that never had it while another gateway reports it. The gateway that admitted
// the task has not heard of the end, and joins first or last.
func TestAnEndOfATaskThatANewMasterLacks(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{true, false} {
		for _, ownerFirst := range []bool{true, false} {
			t.Run(fmt.Sprintf("known %v, owner first %v", known, ownerFirst), func(t *testing.T) {
				t.Parallel()
				testEndThatIsLacking(t, known, ownerFirst)
			})
		}
	}
}

func testEndThatIsLacking(t *testing.T, known, ownerFirst bool) {
	server := redistest.Start(t)
	all := twoJoined(t, server)
	owner, other := all[0], all[1]
	ask := func(c admission.Claim) []admission.Verdict {
		answer := make(chan []admission.Verdict, 1)
		owner.Acquire([]admission.Claim{c}, func(v []admission.Verdict) { answer <- v })
		if err := owner.sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		return <-answer
	}
	save := func() {
		if err := server.Client().Save(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if !known {
		save()
	}
	task := limited("task", 1)
	task.Task = &admission.TaskClaim{Key: "key", Lease: time.Minute, Lifetime: time.Hour}
	wantReasons(t, ask(task), admission.Granted)
	if known {
		save()
	}
	if err := other.EndTask(t.Context(), "acme", "task", -1); err != nil {
		t.Fatal(err)
	}
	server.Kill()
	server.Restart()
	if !ownerFirst {
		slices.Reverse(all)
	}
	events := server.Client().Subscribe(t.Context(), "{sluice}:events")
	defer events.Close()
	if _, err := events.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, s := range append(all, all...) { // the second one may find the loss
		s.markUnavailable(errReply)
		joinNow(t, s)
	}
	wantReasons(t, ask(limited("next", 1)), admission.Granted)
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
	defer cancel()
	for heard := ""; !strings.HasPrefix(heard, "E") || !strings.HasSuffix(heard, "task"); { // the owner is told, whoever was first
		message, err := events.ReceiveMessage(ctx)
		if err != nil {
			t.Fatal("the owner is not told: ", err)
		}
		heard = message.Payload
	}
}

// TestAnEndThatIsToldAgain: in a new epoch a gateway tells once more which tasks have ended. A
// store that knows the end of a task does not forget it earlier for that: a gateway that was away
// for long must not bring the task back.
func TestAnEndThatIsToldAgain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := stores(t, 2, Config{}, server)
	wantReasons(t, acquire(all[0], task("task", "", time.Hour)), admission.Granted)
	wantError(t, all[1].EndTask(t.Context(), "acme", "task", noCorrection), nil)
	if err := server.Client().HSet(t.Context(), "{sluice}:epoch", "id", "another").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end is told again", func() bool {
		all[1].mu.Lock()
		defer all[1].mu.Unlock()
		return all[1].epoch == "another" && len(all[1].ended) == 1
	})
	if left := server.Client().PTTL(t.Context(), "{sluice}:ended:task").Val(); left < 50*time.Minute {
		t.Errorf("the store forgets the end of the task in %v", left)
	}
}

// TestAnEndThatWasNotHeard: another gateway ends a task while the subscription of the gateway that
// admitted it is broken. That gateway learns of the end when it has subscribed again.
func TestAnEndThatWasNotHeard(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := stores(t, 2, Config{}, server)
	task := limited("task", 1)
	task.Task = &admission.TaskClaim{Lease: time.Hour, Lifetime: time.Hour}
	wantReasons(t, acquire(all[0], task), admission.Granted)
	subscribed := func() bool {
		n, err := server.Client().PubSubNumSub(t.Context(), "{sluice}:events").Result()
		return err == nil && n["{sluice}:events"] == 2
	}
	eventually(t, "both have subscribed", subscribed)
	if err := server.Client().ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err(); err != nil {
		t.Fatal(err)
	}
	if err := all[1].EndTask(t.Context(), "acme", "task", -1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the gateway knows that its task has ended", func() bool {
		all[0].mu.Lock()
		defer all[0].mu.Unlock()
		return len(all[0].tasks) == 0
	})
}

// TestATaskThatIsNotReportedYet: after an outage, gateways come back one after the other. Of a task
// that the store does not know, one that is early does not say that there is none.
func TestATaskThatIsNotReportedYet(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := stores(t, 1, Config{}, server)[0]
	if err := s.EndTask(t.Context(), "acme", "task", -1); !errors.Is(err, admission.ErrUnknownTask) {
		t.Fatal("after the start: ", err)
	}
	server.Kill()
	eventually(t, "the store is lost", func() bool { return !s.Status().Up })
	server.Restart()
	eventually(t, "the store is shared again", func() bool { return s.Status().Up })
	at := func(returned time.Time) error {
		s.mu.Lock()
		if s.returnedAt.IsZero() {
			t.Error("it does not know when it has returned")
		}
		s.returnedAt = returned
		s.mu.Unlock()
		return s.EndTask(t.Context(), "acme", "task", -1)
	}
	if err := at(time.Now().Add(time.Hour)); !errors.Is(err, admission.ErrUnavailable) {
		t.Error("early: ", err)
	}
	if err := at(time.Now().Add(-aliveFor)); !errors.Is(err, admission.ErrUnknownTask) {
		t.Error("later: ", err)
	}
}
