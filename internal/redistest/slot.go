package redistest

import (
	"net"
	"testing"

	"github.com/redis/go-redis/v9"
)

// MovingSlot is a slot of a cluster that moves from its master to another one.
type MovingSlot struct {
	cluster  []*Server
	slot     int64
	from, to *redis.Client
	// host and port are those of the new master, and id is its name in the cluster.
	host, port, id string
}

// MoveSlot begins to move the slot of a key to another master of the cluster. No key moves yet.
func MoveSlot(t testing.TB, cluster []*Server, key string) *MovingSlot {
	t.Helper()
	m := &MovingSlot{cluster: cluster}
	var err error
	m.slot, err = cluster[0].Client().ClusterKeySlot(t.Context(), key).Result()
	cluster[0].must(err)
	const slots = 16384
	old := int(m.slot) * len(cluster) / slots
	next := cluster[(old+1)%len(cluster)]
	m.from, m.to = cluster[old].Client(), next.Client()
	m.host, m.port, _ = net.SplitHostPort(next.Addr)
	m.id, err = m.to.Do(t.Context(), "CLUSTER", "MYID").Text()
	next.must(err)
	oldID, err := m.from.Do(t.Context(), "CLUSTER", "MYID").Text()
	next.must(err)
	next.must(m.to.Do(t.Context(), "CLUSTER", "SETSLOT", m.slot, "IMPORTING", oldID).Err())
	next.must(m.from.Do(t.Context(), "CLUSTER", "SETSLOT", m.slot, "MIGRATING", m.id).Err())
	return m
}

// Move moves one key.
func (m *MovingSlot) Move(t testing.TB, key string) {
	t.Helper()
	if err := m.from.Do(t.Context(), "MIGRATE", m.host, m.port, key, 0, 10_000).Err(); err != nil {
		t.Fatal(key, err)
	}
}

// Moved returns the keys that the new master has.
func (m *MovingSlot) Moved(t testing.TB) []string { return m.keys(t, m.to) }

func (m *MovingSlot) keys(t testing.TB, c *redis.Client) []string {
	t.Helper()
	keys, err := c.ClusterGetKeysInSlot(t.Context(), int(m.slot), 1000).Result()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// End moves the keys that are left, and gives the slot to the new master.
func (m *MovingSlot) End(t testing.TB) {
	t.Helper()
	for _, key := range m.keys(t, m.from) {
		m.Move(t, key)
	}
	for _, c := range []*redis.Client{m.to, m.from} {
		if err := c.Do(t.Context(), "CLUSTER", "SETSLOT", m.slot, "NODE", m.id).Err(); err != nil {
			t.Fatal(err)
		}
	}
}
