package dispatch

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/admission/redis"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// gateway is a dispatcher that shares its state with others.
type gateway struct {
	stage
	store *redis.Store
	// kill ends the process of the gateway, as far as Redis can see.
	kill func()
}

func startGateway(t *testing.T, server *redistest.Server, name string, servers ...string) gateway {
	t.Helper()
	store, err := redis.New(redis.Config{Server: redis.Server{URL: redistest.URL(server)}, Gateway: name, Timeout: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- store.Run(ctx) }()
	kill := sync.OnceFunc(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(kill)
	fleet := engines.NewFleet()
	g := gateway{stage{New(Config{Fleet: fleet, Shared: true,
		Admission: admission.New(admission.Config{Shared: store, Gateway: name})}), fleet}, store, kill}
	g.SetRules(Rules{Default: Policy{Limits: admission.Limits{QueueTimeout: time.Second}}})
	list := replicas(servers...)
	for i := range list {
		list[i].Launcher, list[i].Slots = engines.Upstream, 1
	}
	g.put("m", list...)
	return g
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	testutil.Eventually(t, what, holds)
}

// awaitGateways waits until the gateways share their state.
func awaitGateways(t *testing.T, all ...gateway) {
	t.Helper()
	for _, g := range all {
		eventually(t, "they share", func() bool { s := g.store.Status(); return s.Up && s.Gateways == len(all) })
	}
}

// awaitSlot waits until Redis counts one request at the replica.
func awaitSlot(t *testing.T, server *redistest.Server, replica string) {
	t.Helper()
	client := server.Client()
	eventually(t, "the slot of "+replica+" is taken", func() bool {
		return client.ZCard(t.Context(), "{sluice}:replica:"+replica).Val() == 1
	})
}

// awaitLeases waits until Redis counts so many leases of the model.
func awaitLeases(t *testing.T, server *redistest.Server, n int64) {
	t.Helper()
	client := server.Client()
	eventually(t, fmt.Sprint(n, " leases"), func() bool { return client.ZCard(t.Context(), "{sluice}:leases:m").Val() == n })
}

// wantAt wants a request to go to this server.
func (g gateway) wantAt(t *testing.T, want string) *Ticket {
	t.Helper()
	ticket := g.must(t, newRequest("m", "k"))
	if ticket.Replica() != want {
		t.Fatalf("it goes to %s, want %s", ticket.Replica(), want)
	}
	return ticket
}

// wantFull wants a request to wait in vain for a slot.
func (g gateway) wantFull(t *testing.T) {
	t.Helper()
	if ticket, fault := g.Dispatch(t.Context(), newRequest("m", "k")); fault == nil || fault.Code != openai.CodeQueueTimeout {
		t.Fatalf("got %v, %v, and no slot is free", ticket, fault)
	}
}

// TestW5_OtherGatewaysSeeASlotThatMoves: a request that another replica has taken over holds its
// slot there, and none where it was. The other gateways see that, and so does its own while Redis
// does not answer.
func TestW5_OtherGatewaysSeeASlotThatMoves(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	one, other := startGateway(t, server, "one", "a", "b"), startGateway(t, server, "other", "a", "b")
	awaitGateways(t, one, other)
	address := map[string]string{"a": "127.0.0.1:9000", "b": "127.0.0.1:9001"}
	moving := one.must(t, newRequest("m", "k"))
	from := moving.Replica()
	to := slices.DeleteFunc([]string{"a", "b"}, func(id string) bool { return id == from })[0]
	moving.Moved(address[to])
	awaitSlot(t, server, to)
	left := other.wantAt(t, from)
	other.wantFull(t)
	left.Release()

	server.Pause()
	one.wantAt(t, from).Release()
	eventually(t, "both are alone", func() bool { return !one.store.Status().Up && !other.store.Status().Up })
	server.Resume()
	awaitGateways(t, one, other)
	moving.Moved(address[from])
	awaitSlot(t, server, from)
	left = other.wantAt(t, to)
	other.wantFull(t)
	moving.Release()
	other.wantAt(t, from).Release()
	left.Release()
}

// TestW6_OtherGatewaysSeeTheSlotOfARecoveredRequest: a request that outlives its gateway's process
// holds its slot for all gateways, also when the leases of that process have ended meanwhile. Its
// end frees the slot at once, also the one that the process before has taken.
func TestW6_OtherGatewaysSeeTheSlotOfARecoveredRequest(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	first, other := startGateway(t, server, "first", "a"), startGateway(t, server, "other", "a")
	awaitGateways(t, first, other)
	lease, _ := first.must(t, newRequest("m", "k")).Lease()
	first.kill()
	again := startGateway(t, server, "again", "a")
	awaitGateways(t, again, other)
	entry := request.Entry{Log: headers.LogRequests, Interim: true, Model: "m", Upstream: "127.0.0.1:9000", RequestID: "1",
		Metadata: map[string]string{headers.MetadataTenant: "t", headers.MetadataLease: lease}}
	ends := entry
	ends.Interim, ends.Status = false, 200

	again.ObserveRecovered(&ends)
	other.wantAt(t, "a").Release() // it need not wait until the old lease ends by itself

	entry.RequestID, entry.Metadata = "2", map[string]string{headers.MetadataTenant: "t", headers.MetadataLease: "long-gone"}
	ends.RequestID, ends.Metadata = entry.RequestID, entry.Metadata
	again.ObserveRecovered(&entry)
	awaitLeases(t, server, 1)
	other.wantFull(t)
	again.ObserveRecovered(&ends)
	other.wantAt(t, "a").Release()
}
