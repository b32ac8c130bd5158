package sse

import "cmp"

// Outcome is how a stream has ended.
type Outcome uint8

// The ways a stream can end.
const (
	// Truncated: the stream stopped without a proper end. The client must be told.
	Truncated Outcome = iota
	// Complete: the stream has an end marker, or all of its choices have finished.
	Complete
	// Failed: the engine has reported an error.
	Failed
)

// String returns the outcome as in a log line.
func (o Outcome) String() string {
	switch o {
	case Complete:
		return "complete"
	case Failed:
		return "failed"
	}
	return "truncated"
}

// maxIndex bounds what a tracker keeps for choices. A stream with a larger index is complete only
// by its end marker.
const maxIndex = 1 << 16

// Tracker observes all events of a stream and reports at its end whether the stream was complete.
// Its size does not grow with the length of the stream. A Tracker is for one goroutine.
type Tracker struct {
	// Choices is how many choices the client asked for. 0: unknown, the choices of the stream are
	// all.
	Choices int

	chunk    Chunk
	usage    Usage
	hasUsage bool
	events   int64 // with output of the model
	// counted is how many of events there were when the engine last reported its usage.
	counted int64
	finish  string
	state   []choiceState // by index
	open    int           // choices that are not finished
	closed  int
	hasOdd  bool // there was an index that is not kept
	done    bool
	failed  bool
	cut     bool
}

type choiceState uint8

const (
	unseen choiceState = iota
	open
	finished
)

// See reads the next event. The chunk belongs to the tracker and is valid until the next call.
func (t *Tracker) See(e *Event) *Chunk {
	if e.IsDone() { // also without its line end: nothing that matters is missing
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
	t.record(&t.chunk)
	return &t.chunk
}

func (t *Tracker) record(c *Chunk) {
	t.failed = t.failed || c.Error
	t.done = t.done || c.Last
	t.finish = cmp.Or(c.Finish, t.finish)
	if c.Token {
		t.events++
	}
	if c.Told {
		t.hasUsage, t.counted = true, t.events
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
		t.hasOdd = true
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

// Outcome returns how the stream has ended, if it ends now. An end marker after an error does not
// make the stream complete. A stream that ends inside an event is truncated even if its choices
// have finished, because the usage may be missing.
func (t *Tracker) Outcome() Outcome {
	switch {
	case t.failed:
		return Failed
	case t.done:
		return Complete
	case t.cut, t.hasOdd, t.open > 0, t.closed == 0, t.closed < t.Choices:
		return Truncated
	}
	return Complete
}

// Unfinished returns the indexes of the choices that have not finished, of those that were asked
// for or seen.
func (t *Tracker) Unfinished() []int {
	var indexes []int
	for i := range max(t.Choices, len(t.state), 1) {
		if i >= len(t.state) || t.state[i] != finished {
			indexes = append(indexes, i)
		}
	}
	return indexes
}

// Done reports whether the end marker was seen. Events after it mean nothing.
func (t *Tracker) Done() bool { return t.done }

// Usage returns the largest usage that an event has reported, because engines count up. ok is false
// if no event has reported one, or if output of the model has come after the last report.
func (t *Tracker) Usage() (usage Usage, ok bool) {
	return t.usage, t.hasUsage && t.counted == t.events
}

// Tokens returns how many events carried output of the model: about the number of tokens, for an
// engine that reports no usage.
func (t *Tracker) Tokens() int64 { return t.events }

// Finish returns the last finish_reason, see Chunk.Finish for the Responses API; empty: none.
func (t *Tracker) Finish() string { return t.finish }
