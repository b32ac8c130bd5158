package delta

import "maps"

// Calls tells the tool calls of one stream apart. The zero Calls is ready. It is for one goroutine.
//
// A call is known by the index that the engine gives it, as long as the engine gives each call its
// own. Some engines give all calls of a choice the same index. Then an id with a name begins
// another call. An id without a name does not, because some engines give each piece of a call its
// own id.
type Calls struct {
	// last has the last call of each index of the engine.
	last map[callPlace]call
	// taken has the numbers that are in use. next is the lowest number above all of a choice.
	taken map[callPlace]bool
	next  map[int]int
}

// callPlace is an index, or a number, of one choice.
type callPlace struct{ choice, index int }

// call is one tool call: its number, the id that the engine gave it first, and whether its name is
// known.
type call struct {
	number int
	id     string
	named  bool
}

// Resolve makes the delta of a tool call one that names its call. Tool becomes a number that only
// this call of the choice has. ID and Name stay only where they are the first of the call. The
// number is the engine's index if that is free. Other deltas stay as they are.
func (c *Calls) Resolve(d *Delta) {
	if d.Kind != ToolCall {
		return
	}
	at := callPlace{d.Choice, d.Tool}
	k, known := c.last[at]
	another := len(d.ID) > 0 && len(d.Name) > 0 && k.id != "" && k.id != string(d.ID)
	if !known || another {
		k = call{number: c.take(at)}
	}
	if k.id != "" {
		d.ID = nil
	}
	if k.named {
		d.Name = nil
	}
	if len(d.ID)+len(d.Name) > 0 || !known {
		k.id, k.named = k.id+string(d.ID), k.named || len(d.Name) > 0
		c.last[at] = k
	}
	d.Tool = k.number
}

// take takes a number for the next call of an index: the index, or the next number if the index is
// none or is taken.
func (c *Calls) take(at callPlace) int {
	if c.last == nil {
		c.last, c.taken, c.next = map[callPlace]call{}, map[callPlace]bool{}, map[int]int{}
	}
	next := c.next[at.choice]
	if at.index < 0 || c.taken[at] {
		at.index = next
	}
	c.taken[at] = true
	c.next[at.choice] = max(next, at.index+1)
	return at.index
}

// Clone returns Calls that go on as these do. Neither changes the other.
func (c *Calls) Clone() Calls {
	return Calls{last: maps.Clone(c.last), taken: maps.Clone(c.taken), next: maps.Clone(c.next)}
}
