package prefix

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// The fixed lengths are every 64 bytes up to 1 KiB and then 16 in each doubling.
func TestB1_FixedLengths(t *testing.T) {
	c := chainOf(strings.Repeat("x", 5000))
	var want []uint32
	for n := uint32(64); n <= 5000; {
		want = append(want, n)
		switch {
		case n < 2048:
			n += 64
		case n < 4096:
			n += 128
		default:
			n += 256
		}
	}
	if got := ends(c.Blocks); !slices.Equal(got, want) {
		t.Errorf("fixed lengths %v, want %v", got, want)
	}
	if got := ends(c.Ends); !slices.Equal(got, []uint32{5000}) || c.Bytes != 5000 {
		t.Errorf("ends %v of %d bytes", got, c.Bytes)
	}
	sum := 0
	for _, b := range c.Blocks {
		sum += weight(b.End)
	}
	if last := c.Blocks[len(c.Blocks)-1].End; sum != int(last) {
		t.Errorf("the blocks up to %d weigh %d", last, sum)
	}
}

// A fixed length weighs the distance from the one before. Other ends are beside them.
func TestB1_Weights(t *testing.T) {
	for end, want := range map[uint32]int{1: 1, 63: 63, 64: 64, 65: 0, 1024: 64, 1088: 64, 2048: 64, 2112: 0, 2176: 128, 4352: 256, 4480: 0} {
		if got := weight(end); got != want {
			t.Errorf("%d weighs %d, want %d", end, got, want)
		}
	}
}

func ends(blocks []Block) (list []uint32) {
	for _, b := range blocks {
		list = append(list, b.End)
	}
	return list
}

// common returns the longest beginning that two chains share.
func common(a, b Chain) (longest uint32) {
	for _, x := range slices.Concat(a.Blocks, a.Ends) {
		if slices.Contains(slices.Concat(b.Blocks, b.Ends), x) {
			longest = max(longest, x.End)
		}
	}
	return longest
}

func TestB1_ChainsShareBeginnings(t *testing.T) {
	system := strings.Repeat("You are terse. ", 10) // 150 bytes
	shared := strings.Repeat("A shared beginning. ", 40)
	for name, c := range map[string]struct {
		a, b Chain
		want uint32
	}{
		"the same":                              {chainOf(system, shared), chainOf(system, shared), 950},
		"inside of a message":                   {chainOf(shared + "one"), chainOf(shared + "other, which is longer"), 768},
		"the message goes on":                   {chainOf(shared), chainOf(shared + "more"), 800 - 32},
		"the conversation goes on":              {chainOf(system), chainOf(system, shared), 150},
		"same texts, other cuts":                {chainOf("ab", "c"), chainOf("a", "bc"), 0},
		"same texts, other cuts, longer":        {chainOf(system+system, system), chainOf(system, system+system), 128},
		"a text that looks like two":            {chainOf("a", "b"), chainOf("a\xf8b"), 0},
		"nothing":                               {chainOf(), chainOf(), 0},
		"messages without text are not counted": {chainOf(system, "", ""), chainOf(system), 150},
	} {
		if got := common(c.a, c.b); got != c.want {
			t.Errorf("%s: %d bytes shared, want %d", name, got, c.want)
		}
	}
}

// Roles, roots and names make other chains of the same texts.
func TestB1_NamespacesShareNothing(t *testing.T) {
	text := []byte(strings.Repeat("text ", 40))
	of := func(root string, m Mark, name string) Chain {
		var b Builder
		b.Reset()
		if root != "" {
			b.Root("salt", []byte(root))
		}
		b.Mark(m)
		b.Text(text)
		c := b.Chain()
		c.Reroot(name)
		return c
	}
	var chains []Chain
	for m := MarkRoot; m <= MarkMedia; m++ {
		chains = append(chains, of("", m, ""))
	}
	for _, m := range []Mark{MarkTools, MarkSystem, MarkUser, MarkAssistant, MarkTool, MarkOther, MarkField} {
		chains = append(chains, of("salt", m, ""), of("salt", m, "adapter"))
	}
	chains = append(chains, of("other salt", MarkUser, ""), of("", MarkUser, "adapter"), of("", MarkUser, "other adapter"))
	for i, a := range chains {
		if len(a.Blocks) != 3 || a.Bytes != 200 {
			t.Fatalf("chain %d: %+v", i, a)
		}
		for j, b := range chains[:i] {
			if got := common(a, b); got != 0 {
				t.Errorf("chains %d and %d share %d bytes", i, j, got)
			}
		}
	}
}

// It does not matter in which pieces a text is written.
func TestB1_PiecesOfAText(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		text := make([]byte, rng.IntN(20000))
		for i := range text {
			text[i] = byte('a' + rng.IntN(26))
		}
		var b Builder
		b.Reset()
		b.Mark(MarkUser)
		for rest := text; len(rest) > 0; {
			n := 1 + rng.IntN(len(rest))
			b.Text(rest[:n])
			rest = rest[n:]
		}
		got, want := b.Chain(), chainOf(string(text))
		if !slices.Equal(got.Blocks, want.Blocks) || !slices.Equal(got.Ends, want.Ends) || got.Bytes != want.Bytes {
			t.Fatalf("%d bytes in pieces: %+v, want %+v", len(text), got, want)
		}
	}
}

// Media count 2,048 bytes, in blocks that differ.
func TestB1_Media(t *testing.T) {
	of := func(digests ...uint64) Chain {
		var b Builder
		b.Reset()
		b.Mark(MarkUser)
		b.Text([]byte("look at this: "))
		for _, d := range digests {
			b.Media(d)
		}
		b.Text([]byte("what is it?"))
		return b.Chain()
	}
	a := of(1, 2)
	if a.Bytes != 14+2*2048+11 {
		t.Errorf("%d bytes", a.Bytes)
	}
	seen := map[uint64]bool{}
	for _, b := range a.Blocks {
		if seen[b.Hash] {
			t.Errorf("the block at %d has the hash of another", b.End)
		}
		seen[b.Hash] = true
	}
	if got := common(a, of(1, 3)); got != 2048 {
		t.Errorf("another second image: %d bytes shared", got)
	}
	if got := common(a, of(3, 2)); got != 0 {
		t.Errorf("another first image: %d bytes shared", got)
	}
}

// A chain has the ends of the last 16 messages, the whole prompt first.
func TestB1_Ends(t *testing.T) {
	var messages []string
	var want []uint32
	for i := range uint32(40) {
		messages = append(messages, "ten bytes.")
		want = append([]uint32{10 * (i + 1)}, want...)
		if got := ends(chainOf(messages...).Ends); !slices.Equal(got, want[:min(16, len(want))]) {
			t.Errorf("%d messages end at %v, want %v", i+1, got, want)
		}
	}
}

// What is longer than a chain can be is not in it.
func TestB1_TheLongestPrompt(t *testing.T) {
	var b Builder
	b.Reset()
	piece := make([]byte, 1<<26)
	for range 20 {
		b.Text(piece)
		b.End()
	}
	b.Media(1)
	c := b.Chain()
	if c.Bytes != maxBytes || len(c.Blocks) != maxBlocks || c.Blocks[maxBlocks-1].End != maxBytes {
		t.Errorf("%d blocks of %d bytes, the last %+v", len(c.Blocks), c.Bytes, c.Blocks[len(c.Blocks)-1])
	}
}

// A chain says how long the tools and the instructions are.
func TestB1_StartOfTheConversation(t *testing.T) {
	for _, c := range []struct {
		marks []Mark // of a message of 100 bytes each
		want  int
	}{
		{nil, 0}, {[]Mark{MarkUser}, 0}, {[]Mark{MarkTools, MarkSystem, MarkUser, MarkSystem}, 200}, {[]Mark{MarkSystem}, 100},
		{[]Mark{MarkSystem, MarkAssistant}, 100}, {[]Mark{MarkOther}, 0}, {[]Mark{MarkTools, MarkField, MarkTool}, 200},
	} {
		var b Builder
		b.Reset()
		for _, m := range c.marks {
			b.Mark(m)
			b.Text(make([]byte, 100))
		}
		if got := b.Chain().Start; got != c.want {
			t.Errorf("%v: the conversation starts at %d, want %d", c.marks, got, c.want)
		}
	}
}

func TestB1_HashAt(t *testing.T) {
	var b Builder
	b.Reset()
	b.Mark(MarkUser)
	b.Text(make([]byte, 100))
	c := b.Chain()
	for end, want := range map[int32]uint64{0: 0, 64: c.Blocks[0].Hash, 100: c.Ends[0].Hash, 128: 0} {
		if got := c.HashAt(end); got != want {
			t.Errorf("the hash at %d is %x, want %x", end, got, want)
		}
	}
}
