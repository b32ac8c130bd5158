package moderation

import (
	"slices"
	"unicode"
)

// automaton finds literals in one pass, rune by rune (Aho and Corasick 1975). Its state stands for
// the longest suffix of the text that begins a literal. State 0 has depth 0: no suffix does.
type automaton struct {
	fold  bool
	root  [128]int32 // the states that ASCII runes lead to from state 0
	nodes []node
}

type node struct {
	next  []edge // ordered by rune
	fail  int32  // the state of the longest proper suffix
	depth int32  // in runes
	rule  int32  // the rule of a literal that ends here; -1: none does
}

type edge struct {
	r  rune
	to int32
}

// empty reports whether there are no literals.
func (a *automaton) empty() bool { return len(a.nodes) == 1 }

// step returns the state after one more rune.
func (a *automaton) step(state int32, r rune) int32 {
	if a.fold {
		r = foldRune(r)
	}
	for state != 0 {
		if to := a.nodes[state].find(r); to != 0 {
			return to
		}
		state = a.nodes[state].fail
	}
	if r < 128 {
		return a.root[r]
	}
	return a.nodes[0].find(r)
}

// find returns the state that a rune leads to, 0 if there is none.
func (n *node) find(r rune) int32 {
	if len(n.next) <= 8 {
		for _, e := range n.next {
			if e.r == r {
				return e.to
			}
		}
		return 0
	}
	i, ok := slices.BinarySearchFunc(n.next, r, func(e edge, r rune) int { return int(e.r - r) })
	if !ok {
		return 0
	}
	return n.next[i].to
}

// foldRune returns the least of the runes that differ only by case.
func foldRune(r rune) rune {
	if r < 128 {
		if 'a' <= r && r <= 'z' {
			return r - 'a' + 'A'
		}
		return r
	}
	for {
		next := unicode.SimpleFold(r)
		if next <= r { // the runes of a fold form a cycle
			return next
		}
		r = next
	}
}

// trie is an automaton under construction.
type trie struct{ a automaton }

func newTrie(fold bool) *trie {
	return &trie{automaton{fold: fold, nodes: []node{{rule: -1}}}}
}

// add adds a literal of a rule. Of several rules with the same literal the first one counts.
func (t *trie) add(literal string, rule int) {
	state := int32(0)
	for _, r := range literal {
		if t.a.fold {
			r = foldRune(r)
		}
		to := t.a.nodes[state].find(r)
		if to == 0 {
			to = int32(len(t.a.nodes))
			t.a.nodes = append(t.a.nodes, node{depth: t.a.nodes[state].depth + 1, rule: -1})
			t.a.nodes[state].insert(edge{r, to})
		}
		state = to
	}
	if end := &t.a.nodes[state]; state != 0 && end.rule < 0 {
		end.rule = int32(rule)
	}
}

func (n *node) insert(e edge) {
	i, _ := slices.BinarySearchFunc(n.next, e.r, func(e edge, r rune) int { return int(e.r - r) })
	n.next = slices.Insert(n.next, i, e)
}

// automaton computes the fail states in breadth-first order, and returns the finished automaton.
func (t *trie) automaton() automaton {
	a := t.a
	queue := []int32{0}
	for len(queue) > 0 {
		from := queue[0]
		queue = queue[1:]
		for _, e := range a.nodes[from].next {
			queue = append(queue, e.to)
			if from == 0 {
				if e.r < 128 {
					a.root[e.r] = e.to
				}
				continue
			}
			to := &a.nodes[e.to]
			to.fail = a.stepFolded(a.nodes[from].fail, e.r)
			if r := a.nodes[to.fail].rule; r >= 0 && (to.rule < 0 || r < to.rule) {
				to.rule = r
			}
		}
	}
	return a
}

// stepFolded is step for a rune that is folded already. It works during construction.
func (a *automaton) stepFolded(state int32, r rune) int32 {
	for {
		if to := a.nodes[state].find(r); to != 0 || state == 0 {
			return to
		}
		state = a.nodes[state].fail
	}
}
