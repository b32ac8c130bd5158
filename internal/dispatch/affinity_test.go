package dispatch

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/prefix"
	"github.com/sluice-gateway/sluice/ringhash"
)

// chat is the request of a conversation of these user messages, with an answer after each but the
// last.
func chat(t testing.TB, users ...string) *Request {
	t.Helper()
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	messages := []message{{"system", "You are terse."}}
	for i, text := range users {
		if messages = append(messages, message{"user", text}); i < len(users)-1 {
			messages = append(messages, message{"assistant", "Yes."})
		}
	}
	body, err := json.Marshal(map[string]any{"model": "m", "messages": messages})
	if err != nil {
		t.Fatal(err)
	}
	scan, fault := openai.Scan(openai.Chat, "application/json", body)
	if fault != nil {
		t.Fatal(fault)
	}
	return NewRequest(Caller{Tenant: &authz.Tenant{Name: "t", Models: []string{"*"}}}, &scan, body)
}

// turnsBack is how many turns a test goes back at most.
const turnsBack = 8

func messages(conversation, turns int) []string {
	list := make([]string, turns)
	for i := range list {
		list[i] = fmt.Sprintf("%d: estimate %d", conversation, i)
	}
	return list
}

func eight() []engines.Replica { return replicas("a", "b", "c", "d", "e", "f", "g", "h") }

// returns is how many of the later turns of 16 conversations, two of which run at any time, come to
// the replica of the turn before.
func (s stage) returns(t *testing.T, change func(*Request)) (returned, turns int, used map[string]int) {
	at, used := map[int]string{}, map[string]int{}
	var last *Ticket
	for turn := 1; turn <= turnsBack+2; turn++ {
		for conversation := range 16 {
			r := chat(t, messages(conversation, turn)...)
			change(r)
			ticket := s.must(t, r)
			if turn > 1 {
				if turns++; ticket.Replica() == at[conversation] {
					returned++
				}
			}
			at[conversation] = ticket.Replica()
			used[ticket.Replica()]++
			if last != nil {
				last.Release()
			}
			last = ticket
		}
	}
	last.Release()
	return returned, turns, used
}

func TestConversationsAreRemembered(t *testing.T) {
	policy := Policy{LoadFloor: 8, UserMessages: 2}
	s := newStage(policy)
	s.put("m", eight()...)
	returned, turns, used := s.returns(t, func(*Request) {})
	if returned != turns || turns != 16*(turnsBack+1) {
		t.Errorf("%d of %d turns came back", returned, turns)
	}
	if len(used) < 5 {
		t.Errorf("16 conversations with one system prompt are on %v", used)
	}
	s = newStage(policy)
	s.put("m", eight()...)
	if returned, turns, _ = s.returns(t, func(r *Request) { r.Chain = nil }); returned == turns {
		t.Error("the ring alone keeps them all, so this test shows nothing")
	}
	policy.Strategy = CHWBL
	s = newStage(policy)
	s.put("m", eight()...)
	if _, _, _ = s.returns(t, func(r *Request) {
		r.Chain = func(int) prefix.Chain { t.Error("chwbl reads prompts"); return prefix.Chain{} }
	}); t.Failed() {
		return
	}
}

// One conversation asked for many times at once spreads as the bound says. (Without a floor the
// first six have no bound: whoever has nothing to do is over it too.)
func TestRememberedWithinTheBound(t *testing.T) {
	for _, floor := range []int{0, 8} {
		s := newStage(Policy{LoadFloor: floor, UserMessages: 2})
		s.put("m", eight()...)
		first := s.must(t, chat(t, messages(1, 1)...))
		first.Release()
		var tickets []*Ticket
		for n := range 100 {
			tickets = append(tickets, s.must(t, chat(t, messages(1, 2)...)))
			// The bound decides among replicas that are about as fast. One that is faster may
			// exceed it a little.
			most := max(floor, int(ringhash.DefaultFactor*float64(n+1)/8+1e-9), 6) + 6
			for _, id := range strings.Fields("a b c d e f g h") {
				if load := s.Load(id); load > most {
					t.Fatalf("floor %d: %s has %d of %d, bound %d", floor, id, load, n+1, most)
				}
			}
			if n < floor && tickets[n].Replica() != first.Replica() {
				t.Errorf("floor %d: request %d went to %s and not to %s", floor, n, tickets[n].Replica(), first.Replica())
			}
		}
		for _, ticket := range tickets {
			ticket.Release()
		}
	}
}

// Where the home cannot be had the ring decides, and the conversation stays there from then on.
func TestARememberedReplicaThatCannotBeHad(t *testing.T) {
	for name, lose := range map[string]func(s stage, home string) (again func()){
		"full": func(s stage, home string) func() {
			s.SetRules(Rules{Default: Policy{LoadFloor: 8, UserMessages: 2, MaxPerReplica: 1}})
			c := s.counters[home]
			c.load.Add(1)
			return func() { c.load.Add(-1) }
		},
		"draining": func(s stage, home string) func() {
			list := eight()
			for i := range list {
				if list[i].ID == home {
					list[i].State = engines.Draining
				}
			}
			s.put("m", list...)
			s.rebuild()
			return func() { s.put("m", eight()...); s.rebuild() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(Policy{LoadFloor: 8, UserMessages: 2})
			s.put("m", eight()...)
			first := s.must(t, chat(t, messages(1, 1)...))
			first.Release()
			again := lose(s, first.Replica())
			second := s.must(t, chat(t, messages(1, 2)...))
			second.Release()
			if again(); second.Replica() == first.Replica() {
				t.Fatalf("went to %s", second.Replica())
			}
			third := s.must(t, chat(t, messages(1, 3)...))
			if third.Release(); third.Replica() != second.Replica() {
				t.Errorf("%s, then %s, then %s", first.Replica(), second.Replica(), third.Replica())
			}
		})
	}
}

// A conversation that goes on from an earlier turn is known by that one, and one that a retry took
// elsewhere is known there.
func TestOtherWaysOfAConversation(t *testing.T) {
	s := newStage(Policy{LoadFloor: 8, UserMessages: 0})
	s.put("m", eight()...)
	ticket := s.must(t, chat(t, "one"))
	start := ticket.Replica()
	other := strings.Split(ticket.Endpoints(), ",")[1]
	ticket.Moved(other)
	moved := ticket.Replica()
	if ticket.Release(); moved == start {
		t.Fatal("the ticket did not move")
	}
	for _, users := range [][]string{{"one", "two"}, {"one", "two", "three"}, {"one", "two", "or rather"}, {"one", "else", "and", "so", "on"}} {
		next := s.must(t, chat(t, users...))
		if next.Release(); next.Replica() != moved {
			t.Errorf("%q went to %s, want %s", users, next.Replica(), moved)
		}
	}
	if stranger := s.must(t, chat(t, "two")); stranger.Replica() != start {
		t.Errorf("one with the same system prompt went to %s: not by the ring", stranger.Replica())
	}
}

// A long prompt is hashed once. Its place on the ring is the hash of its beginning where replicas
// are compared by that, and a model with one replica needs no place.
func TestAPromptIsHashedOnce(t *testing.T) {
	for name, c := range map[string]struct {
		strategy Strategy
		replicas []engines.Replica
		hashed   int
	}{
		"prefix":                  {Prefix, eight(), 0},
		"chwbl":                   {CHWBL, eight(), 1},
		"least connections":       {LeastConnections, eight(), 1},
		"prefix with one replica": {Prefix, replicas("a"), 0},
		"chwbl with one replica":  {CHWBL, replicas("a"), 0},
	} {
		s := newStage(Policy{Strategy: c.strategy, LoadFloor: 8, UserMessages: 2})
		s.put("m", c.replicas...)
		r := chat(t, messages(1, 2)...)
		hash, hashed := r.Key, 0
		r.Key = func(n int) uint64 { hashed++; return hash(n) }
		s.must(t, r).Release()
		if hashed != c.hashed {
			t.Errorf("%s: hashed %d times, want %d", name, hashed, c.hashed)
		}
	}
}

// Gateways that know nothing of each other send a conversation to the same replica, and many
// conversations to many.
func TestGatewaysAgreeOnAPlace(t *testing.T) {
	used := map[string]bool{}
	for conversation := range 32 {
		var at [2]string
		for gateway := range at {
			s := newStage(Policy{LoadFloor: 8, UserMessages: 2})
			s.put("m", eight()...)
			ticket := s.must(t, chat(t, messages(conversation, 2+gateway)...)) // the second has a later turn
			at[gateway] = ticket.Replica()
			ticket.Release()
		}
		if used[at[0]] = true; at[0] != at[1] {
			t.Errorf("conversation %d is at %s and at %s", conversation, at[0], at[1])
		}
	}
	if len(used) < 6 {
		t.Errorf("32 conversations are on %d of 8 replicas", len(used))
	}
}
