// Package moderation ends streams that say what a rule forbids. A [Set] is made once of the rules and shared; a [Filter] sees the
// events of one stream, each before it is sent, and says whether it may go.
//
// A rule has literals, patterns and a hook. What each promises differs:
//
//   - Of a literal nothing is ever sent: an event whose text may be the beginning of one is held until the text that follows has
//     decided. (The exception is a text that is left for another of the same choice, see patience.)
//   - A pattern is matched as the text comes, and nothing waits for it: the event that completes a match is not sent, what came
//     before it has been.
//   - A hook is asked about each stretch of text, and the stream waits for its answer. What came since the last question has been
//     sent.
//
// Text, reasoning, refusal and the arguments of each tool call of each choice are texts of their own; what a rule finds never spans two of
// them. Arguments are looked at as the JSON text that they are. What is looked at is what clients see: escapes undone, bytes that are no
// UTF-8 as U+FFFD.
package moderation

import (
	"net/http"
	"regexp"
	"time"
)

// Rule is what may not be said.
type Rule struct {
	Name string
	// Literals are found wherever they stand, in words too. Empty ones are ignored.
	Literals []string
	// Patterns are found wherever they match; one that matches nothing at all blocks everything. ^ and $ are the text's beginning and end.
	Patterns []*regexp.Regexp
	// IgnoreCase is for literals and patterns alike, by Unicode's simple folding.
	IgnoreCase bool
	// Window is how many bytes a match of a pattern may span, and how many of what a hook has seen it is told again; 0: 4096.
	Window int
	Hook   *Hook
}

// Hook is a service that is asked about text by HTTP. It gets POST with
//
//	{"model":"m","text":"…","choice":0,"final":false}
//
// and answers 200 with {"action":"allow"} or {"action":"block"}; anything else, redirects too, is a failure. final says that the text is at
// its end; it is asked then only if there is text that it has not seen.
type Hook struct {
	// URL comes from the gateway's own configuration, never from a request.
	URL string
	// Timeout is how long one question may take; 0: 1 s.
	Timeout time.Duration
	// FailOpen lets pass what the hook gave no answer about. Else it is blocked.
	FailOpen bool
	// Every is how many bytes of new text there are between two questions; 0: 512.
	Every int
	// Client asks; nil: one with net/http's default transport.
	Client *http.Client
}

// Action is what is to be done with an event.
type Action uint8

// The actions.
const (
	// Pass: it, and whatever was held, may go on.
	Pass Action = iota
	// Hold: it stays for now, behind what is held already.
	Hold
	// Block: neither it nor anything that is held may go, and nothing follows.
	Block
)

// Verdict is what a filter says of an event.
type Verdict struct {
	Action Action
	// Keep is for Hold: how many of the last events must stay, this one included. Those before them may go.
	Keep int
	// Rule is the name of the rule that blocks, Choice the index of the choice that it found.
	Rule   string
	Choice int
	// Err says that a hook gave no answer. It holds neither text nor the hook's address. The action has taken FailOpen into account.
	Err error
}

const (
	defaultWindow  = 4096
	defaultEvery   = 512
	defaultTimeout = time.Second
)

// Set is rules, compiled. It is not changed, and may be used by many at a time.
type Set struct {
	names    []string
	exact    automaton
	folded   automaton // of rules that ignore case
	machines []*machine
	hooks    []*hook
}

// New compiles rules. Of several that apply at the same place the first is named.
func New(rules []Rule) *Set {
	s := &Set{}
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

// Empty says that the rules forbid nothing, so that no filter is needed.
func (s *Set) Empty() bool {
	return !s.literal() && len(s.machines) == 0 && len(s.hooks) == 0
}

func (s *Set) literal() bool { return !s.exact.empty() || !s.folded.empty() }
