package prefix

// Entries returns how many runs of beginnings the budget has room for, each counted once for each
// replica.
func (b *Budget) Entries() int { return b.entries.limit }

// Stats is how full an index is.
type Stats struct {
	// Replicas is the number of slots in use.
	Replicas int
	// Entries is the number of runs of beginnings, each counted once for each replica.
	Entries int
}

// Stats returns how full the index is.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	return Stats{Replicas: int(x.used.Load()), Entries: int(x.held.Load())}
}

// ReplicaStats is what an index knows of one replica. The zero value is that of no replica.
type ReplicaStats struct {
	// Entries is the number of runs of beginnings.
	Entries int
	// Bytes is the length of the prompts that the replica has, common beginnings counted once.
	Bytes int
	// Capacity is how many bytes the index keeps for the replica now; see Correct.
	Capacity int
}

// Replica returns what the index knows of one replica.
func (x *Index) Replica(slot int) ReplicaStats {
	x.mu.Lock()
	defer x.mu.Unlock()
	r := x.replicaLocked(slot)
	if r == nil {
		return ReplicaStats{}
	}
	return ReplicaStats{Entries: r.entries, Bytes: r.bytes, Capacity: r.limit()}
}
