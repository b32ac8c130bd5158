package relay

// Values of generation.countedBy.
const (
	undecidedCount int32 = iota
	countedByStarter
	countedByGeneration
)

// leaveUsage is called when the client that has started a named generation is done, with the
// client's own result. If the generation goes on, for others or for nobody, the generation counts
// what it uses. Else the returned result has all of it.
func (g *generation) leaveUsage(result Result) Result {
	if g.countedBy.CompareAndSwap(undecidedCount, countedByGeneration) {
		result.UsedElsewhere = true
		return result
	}
	<-g.done
	result.Usage, result.Late = g.result.Usage, g.result.Late
	return result
}

// countUsage counts what the generation has used, if the client that has started it has left, and
// shows it in that client's record. What the successor carries is counted there.
func (g *generation) countUsage() {
	requests := g.relay.config.Requests
	if g.countedBy.CompareAndSwap(undecidedCount, countedByStarter) || g.moved || requests == nil {
		return
	}
	requests.Forwarded(g.call.arrival()).SetOutcome(g.result)
	if g.call.Entry != nil {
		<-g.starterTold
		g.call.Entry.SetUsage(g.result.Usage)
	}
}
