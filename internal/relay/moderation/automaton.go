package moderation

import (
	"slices"
	"unicode"
)

// automaton finds literals in one pass (Aho and Corasick 1975), rune by rune. Its state stands for the longest end of the text that
// begins a literal: at depth 0 there is none.
type automaton struct {
	fold  bool
	root  [128]int32 // where the ASCII runes lead from state 0
	nodes []node
}

type node struct {
	next  []edge // ordered by rune
	fail  int32  // the state of the longest proper end
	depth int32  // in runes
	rule  int32  // of a literal that ends here; -1: none does
}

type edge struct {
	r  rune
	to int32
}

func (a *automaton) empty() bool { return len(a.nodes) == 1 }

// step is the state after one more rune.
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

// find is where a rune leads, 0 when it leads nowhere.
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

// foldRune is the least of the runes that differ by case alone.
func foldRune(r rune) rune {
	if r < 128 {
		if 'a' <= r && r <= 'z' {
			return r - 'a' + 'A'
		}
		return r
	}
	for {
		next := unicode.SimpleFold(r)
		if next <= r { // it went around
			return next
		}
		r = next
	}
}

// trie is an automaton that is being made.
type trie struct{ a automaton }

func newTrie(fold bool) *trie {
	return &trie{automaton{fold: fold, nodes: []node{{rule: -1}}}}
}

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

// automaton finds the states to fall back to, those of little depth first.
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
			to.fail = a.folded(a.nodes[from].fail, e.r)
			if r := a.nodes[to.fail].rule; r >= 0 && (to.rule < 0 || r < to.rule) {
				to.rule = r
			}
		}
	}
	return a
}

// folded is step for a rune that is folded already, while the automaton is made.
func (a *automaton) folded(state int32, r rune) int32 {
	for {
		if to := a.nodes[state].find(r); to != 0 || state == 0 {
			return to
		}
		state = a.nodes[state].fail
	}
}
