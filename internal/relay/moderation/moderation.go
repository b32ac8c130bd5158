// Package moderation ends streams that say what a rule forbids. The package internal/relay uses it.
// A [Set] is compiled once from the rules and shared, and a [Filter] checks each event of one
// stream before the event is sent.
//
// A rule has literals, patterns and a hook, which promise different things:
//
//   - No part of a literal is ever sent. An event whose text may be the beginning of a literal is
//     held until the text that follows has decided. (The exception is a text that stops growing
//     while another text of the same choice grows; see maxIdleEvents.)
//   - A pattern is matched as the text comes, and no event is held for it. The event that completes
//     a match is not sent; the events before it have been sent.
//   - A hook is asked about each stretch of text, and the stream waits for its answer. The text
//     since the last question has been sent.
//
// Every string of an answer is judged, whatever its name is ([leaves.Reader] finds them). What
// stands at the same place in several events is one text, and a match never spans two texts. Rules
// see what clients see: escapes are undone, and bytes that are not UTF-8 become U+FFFD. A text that
// has escapes of JSON in itself, as the arguments of a tool call have, is also read without them.
//
// A rule that applies to a choice ends that choice alone. What the model has said in it before
// stays: [Filter.Rewrite] cuts the event. A rule that applies outside of all choices ends the
// answer. Names, echoes of the request and log probabilities that a rule forbids are removed. So is
// what cannot be read, such as audio. An event or an answer that cannot be read as a whole is
// refused.
package moderation

import (
	"hash/maphash"
	"net/http"
	"regexp"
	"time"
)

// Rule is what must not be said.
type Rule struct {
	Name string
	// Literals are found anywhere, also within words. Empty ones are ignored.
	Literals []string
	// Patterns are found wherever they match. A pattern that matches the empty text blocks
	// everything. ^ and $ are the beginning and the end of a text.
	Patterns []*regexp.Regexp
	// IgnoreCase says that literals and patterns ignore case, by Unicode's simple folding.
	IgnoreCase bool
	// Window is how many bytes a match of a pattern may span, and how many bytes before the new
	// text a hook is given again. 0: 4096.
	Window int
	// Hook is asked about texts. nil: there is none.
	Hook *Hook
}

// Hook is a service that judges text over HTTP. It gets POST with
//
//	{"model":"m","text":"…","choice":0,"final":false}
//
// and answers 200 with {"action":"allow"} or {"action":"block"}. Any other answer is a failure, a
// redirect too. final says that the text is at its end; that is only asked if there is text that
// the hook has not seen.
type Hook struct {
	// URL is from the gateway's own configuration, never from a request.
	URL string
	// Timeout is how long one question may take. 0: 1 s.
	Timeout time.Duration
	// FailOpen says that text passes if the hook gives no answer. Otherwise it is blocked.
	FailOpen bool
	// Every is how many bytes of new text there are between two questions. 0: 512.
	Every int
	// Client sends the questions. nil: a client with net/http's default transport.
	Client *http.Client
}

// Action is what has to be done with an event. Whatever it is, an event is sent as Filter.Rewrite
// returns it.
type Action uint8

// The actions.
const (
	// Pass says that the event, and every held event, may be sent.
	Pass Action = iota
	// Hold says that the event must be held, after the events that are held already.
	Hold
	// Block says that the stream ends. Of the event, and of the held events, that is sent which
	// Rewrite leaves.
	Block
	// Refuse says that the event cannot be read, that neither it nor any held event may be sent,
	// and that the stream ends.
	Refuse
)

// Verdict is what a filter says about an event.
type Verdict struct {
	Action Action
	// Keep is for Hold: how many of the last events must be held, this one included. The events
	// before them may be sent.
	Keep int
	// Ended says that a rule has ended a choice. With Pass and Hold the other choices go on. Rule
	// is the name of the rule, and Choice the index of the choice.
	Ended  bool
	Rule   string
	Choice int
	// Err says that a hook gave no answer. It holds neither text nor the hook's address. Action
	// already follows Hook.FailOpen.
	Err error
}

const (
	defaultWindow  = 4096
	defaultEvery   = 512
	defaultTimeout = time.Second
)

// Set is a compiled list of rules. It does not change, and any goroutine may use it.
type Set struct {
	names    []string
	exact    automaton
	folded   automaton // of rules that ignore case
	machines []*machine
	hooks    []*hook
	seed     maphash.Seed
}

// New compiles rules. If several rules apply at the same place, a verdict names the first.
func New(rules []Rule) *Set {
	s := &Set{seed: maphash.MakeSeed()}
	exact, folded := newTrie(false), newTrie(true)
	for i, rule := range rules {
		s.names = append(s.names, rule.Name)
		trie := exact
		if rule.IgnoreCase {
			trie = folded
		}
		for _, literal := range rule.Literals {
			trie.add(literal, i)
		}
		if rule.Window <= 0 {
			rule.Window = defaultWindow
		}
		for _, pattern := range rule.Patterns {
			s.machines = append(s.machines, newMachine(&rule, pattern, i))
		}
		if rule.Hook != nil {
			s.hooks = append(s.hooks, newHook(&rule, i))
		}
	}
	s.exact, s.folded = exact.automaton(), folded.automaton()
	return s
}

func (s *Set) hasLiterals() bool { return !s.exact.empty() || !s.folded.empty() }
