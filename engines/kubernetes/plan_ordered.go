package kubernetes

// The functions of this file plan for a LeaderWorkerSet. It removes the group with the highest
// index first. So its groups drain from the top, and one below waits for those above.

// at returns the active leader with this index, or nil.
func (c *deploymentPlan) at(index int) *pod {
	for i := range c.pods {
		if o := &c.pods[i]; o.active() && o.index == index {
			return o
		}
	}
	return nil
}

// uncreatedOnTop returns how many of the highest indexes have no leader.
func (c *deploymentPlan) uncreatedOnTop() (n int) {
	for i := c.replicas + c.delta - 1; i >= 0 && c.at(i) == nil; i-- {
		n++
	}
	return n
}

// markedOnTop returns how many of the highest indexes have leaders that are marked and drained.
func (c *deploymentPlan) markedOnTop() (n int) {
	if c.delta > 0 {
		return 0
	}
	for i := c.replicas + c.delta - 1; i >= 0; i-- {
		if o := c.at(i); o == nil || !o.marked || !o.drained || o.draining == "" {
			break
		}
		n++
	}
	return n
}

// isBlocked reports whether the pod drains and cannot go, because a group above it stays.
func (c *deploymentPlan) isBlocked(o pod) bool {
	return c.ordered && o.active() && c.count(func(above pod) bool { return above.stays() && above.index > o.index }) > 0
}

// shrinkOrdered removes excess groups from the top. One that does not exist counts: it is dropped
// when those above it have gone.
func (c *deploymentPlan) shrinkOrdered(excess int) {
	excess -= c.dropUncreated(excess)
	for i := c.replicas + c.delta - 1; i >= 0 && excess > 0; i-- {
		switch o := c.at(i); {
		case o == nil:
			excess--
		case o.draining == "":
			c.drain(o)
			excess--
		}
	}
}

// swapOrdered undrains the lowest group that drains, and drains the highest one that does not, if
// the former is below the latter and not worse.
func (c *deploymentPlan) swapOrdered() {
	var back, away *pod
	for i := range c.pods {
		switch o := &c.pods[i]; {
		case c.canUndrain(*o) && (back == nil || o.index < back.index):
			back = o
		case o.stays() && (away == nil || o.index > away.index):
			away = o
		}
	}
	if back != nil && away != nil && back.index < away.index && back.rank >= away.rank {
		c.drain(away)
		c.undrain(back)
	}
}
