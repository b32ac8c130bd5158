package sse

// Outcome is how a stream ended.
type Outcome uint8

// The ways a stream can end.
const (
	// Truncated: it just stopped. To whom it was sent must be told.
	Truncated Outcome = iota
	// Complete: with the end marker, or all of its choices finished.
	Complete
	// Failed: the engine said itself that something went wrong.
	Failed
)

// String is the outcome as in a log line.
func (o Outcome) String() string {
	switch o {
	case Complete:
		return "complete"
	case Failed:
		return "failed"
	}
	return "truncated"
}

// maxIndex bounds what a tracker keeps for choices. A stream with a larger index is complete by its end marker only.
const maxIndex = 1 << 16

// Tracker sees all events of a stream, and knows at its end whether that was one. It adds nothing up, so that it is as
// small at the end as at the beginning. It is for one goroutine.
type Tracker struct {
	// Choices is how many choices were asked for. 0: unknown, those that were seen are all.
	Choices int

	chunk  Chunk
	usage  Usage
	used   bool
	events int64
	finish string
	state  []choiceState // by index
	open   int           // choices seen and not finished
	closed int
	vague  bool // there was an index that is not kept
	done   bool
	failed bool
	cut    bool
}

type choiceState uint8

const (
	unseen choiceState = iota
	open
	finished
)

// See reads the next event. What it gives belongs to the tracker and holds until the next call.
func (t *Tracker) See(e *Event) *Chunk {
	if e.IsDone() { // also without its line end: nothing that matters can be missing
		t.chunk.Read(nil)
		t.done = true
		return &t.chunk
	}
	if e.Cut {
		t.chunk.Read(nil)
		t.cut = true
		return &t.chunk
	}
	read := t.chunk.Read(e.Data)
	t.chunk.Bad = !read && !e.IsComment()
	t.chunk.Error = t.chunk.Error || string(e.Type) == "error" && !e.IsComment()
	t.note(&t.chunk)
	return &t.chunk
}

func (t *Tracker) note(c *Chunk) {
	t.failed = t.failed || c.Error
	t.done = t.done || c.Last
	if c.Token {
		t.events++
	}
	if c.HasUsage {
		t.used = true
		t.usage.Prompt = max(t.usage.Prompt, c.Usage.Prompt)
		t.usage.Completion = max(t.usage.Completion, c.Usage.Completion)
		t.usage.Cached = max(t.usage.Cached, c.Usage.Cached)
	}
	for i := range c.Choices {
		t.choice(&c.Choices[i])
	}
}

func (t *Tracker) choice(c *Choice) {
	if c.Index < 0 || c.Index >= maxIndex {
		t.vague = true
		return
	}
	for int(c.Index) >= len(t.state) {
		t.state = append(t.state, unseen)
	}
	s := &t.state[c.Index]
	if *s == unseen {
		*s = open
		t.open++
	}
	if len(c.Finish) == 0 {
		return
	}
	if t.finish != string(c.Finish) {
		t.finish = string(c.Finish)
	}
	if *s == open {
		*s = finished
		t.open--
		t.closed++
	}
}

// Outcome is how the stream ended, if it ended now. An end marker that follows an error does not make it complete, and a
// stream that ends inside an event was cut, even though its choices had finished: their usage may be missing.
func (t *Tracker) Outcome() Outcome {
	switch {
	case t.failed:
		return Failed
	case t.done:
		return Complete
	case t.cut, t.vague, t.open > 0, t.closed == 0, t.closed < t.Choices:
		return Truncated
	}
	return Complete
}

// Unfinished lists the indexes of the choices that have not ended: those that were asked for, or seen.
func (t *Tracker) Unfinished() []int {
	var indexes []int
	for i := range max(t.Choices, len(t.state), 1) {
		if i >= len(t.state) || t.state[i] != finished {
			indexes = append(indexes, i)
		}
	}
	return indexes
}

// Done says that the end marker was seen: what follows it means nothing.
func (t *Tracker) Done() bool { return t.done }

// Usage is the most that any event told, if one did: engines count up.
func (t *Tracker) Usage() (Usage, bool) { return t.usage, t.used }

// Tokens is how many events carried some of the answer: about the number of tokens, where the engine does not tell it.
func (t *Tracker) Tokens() int64 { return t.events }

// Finish is the finish_reason that came last; empty: none.
func (t *Tracker) Finish() string { return t.finish }
