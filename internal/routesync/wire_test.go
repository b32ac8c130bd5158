package routesync

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/prefix"
)

// chainOf returns a chain as internal/openai makes it, of a prompt of so many bytes. The prompt
// begins as all prompts with the same seed, up to common bytes, and then goes on as its own.
func chainOf(bytes, common int, seed, own uint64) prefix.Chain {
	c := prefix.Chain{Bytes: bytes}
	hash := func(end int) uint64 {
		h := uint64(end)*0x9e3779b97f4a7c15 ^ seed*0xc2b2ae3d27d4eb4f
		if end > common {
			h ^= own * 0x165667b19e3779f9
		}
		return h * 0xff51afd7ed558ccd
	}
	for end, step := 64, 64; end <= bytes; end += step {
		if c.Blocks = append(c.Blocks, prefix.Block{Hash: hash(end), End: uint32(end)}); end >= 1024 && end&(end-1) == 0 {
			step = end / 16
		}
	}
	for i := range min(16, bytes/500+1) {
		end := bytes - i*487
		c.Ends = append(c.Ends, prefix.Block{Hash: hash(end), End: uint32(end)})
	}
	return c
}

func encode(t testing.TB, all []dispatch.Placement) []byte {
	t.Helper()
	b := newBatch("gateway")
	for i := range all {
		if b.full() {
			t.Fatalf("the message is full with %d of %d placements", i, len(all))
		}
		b.add(&all[i])
	}
	return b.data
}

func TestB1_PlacementsComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	odd := prefix.Chain{Blocks: []prefix.Block{{Hash: 1, End: 1 << 31}, {Hash: 2, End: 3}, {Hash: 3, End: 3}, {Hash: 4, End: 1<<32 - 1}},
		Ends: []prefix.Block{{Hash: 5, End: 0}}, Bytes: 1 << 30}
	all := []dispatch.Placement{
		{Model: "m", Replica: "a:80", Chain: chainOf(3000, 2000, 1, 1), Session: 7},
		{Model: "m", Replica: "b:80", Chain: chainOf(90000, 2000, 1, 2)},
		{Model: "other", Replica: "a:80", Chain: chainOf(3000, 1500, 2, 1)},
		{Model: "m", Replica: "a:80", Chain: chainOf(5000, 2000, 1, 2), Session: 1 << 63},
		{Model: "m", Replica: "a:80", Chain: chainOf(1, 0, 1, 2)},
		{Model: "m", Replica: "a:80", Session: 9, History: 4000},
		{Model: "m", Replica: "a:80", Session: 9, History: 4000, Owner: 1<<32 - 1},
		{Model: "", Replica: "", Chain: prefix.Chain{}},
		{Model: "m", Replica: "a:80", Chain: odd},
		{Model: "m", Replica: "a:80", Chain: chainOf(5000, 2000, 1, 2)},
	}
	data := encode(t, all)
	var d decoder
	for range 2 { // a decoder is used again and again
		m, err := d.decode(data)
		if err != nil || m.sender != "gateway" || m.kind != kindPlacements {
			t.Fatal(m, err)
		}
		if diff := cmp.Diff(all, m.placements, cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
	}
}

// What placements of one message have in common is in it once.
func TestB1_SharedBeginningsAreSentOnce(t *testing.T) {
	t.Parallel()
	var alike, different []dispatch.Placement
	for i := range uint64(50) {
		p := dispatch.Placement{Model: "a-model-with-a-name", Replica: fmt.Sprintf("10.0.0.%d:8000", i%8)}
		p.Chain = chainOf(8000, 7000, 1, i)
		alike = append(alike, p)
		p.Chain = chainOf(8000, 7000, i, i)
		different = append(different, p)
	}
	few, many := len(encode(t, alike))/50, len(encode(t, different))/50
	t.Logf("%d and %d bytes for a prompt of 8,000", few, many)
	if few*2 > many {
		t.Errorf("%d bytes for a prompt that begins as the others, %d for one that does not", few, many)
	}
}

func TestB1_WaitingTokensComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	for _, tokens := range []map[string]int64{{}, {"a": 1}, {"a": 0, "b": 1 << 30, "": 5}} {
		var d decoder
		m, err := d.decode(appendWaiting(appendHead(nil, "g", kindAll), tokens))
		if err != nil || m.sender != "g" || m.kind != kindAll || !reflect.DeepEqual(m.waiting, tokens) {
			t.Errorf("%v came back as %+v, %v", tokens, m, err)
		}
	}
}

func TestB1_BadMessagesAreErrors(t *testing.T) {
	t.Parallel()
	good := encode(t, []dispatch.Placement{
		{Model: "m", Replica: "r", Chain: chainOf(1000, 500, 1, 1)}, {Model: "m", Replica: "r", Chain: chainOf(1000, 500, 1, 2)}})
	var d decoder
	for n := range good {
		m, err := d.decode(good[:n])
		// A message that ends with a whole placement is a message.
		if err == nil && len(m.placements) == 2 {
			t.Errorf("the first %d of %d bytes are a message", n, len(good))
		}
	}
	other := append([]byte(nil), good...)
	other[0]++
	if _, err := d.decode(other); err != errVersion {
		t.Errorf("another version: %v", err)
	}
	for name, data := range map[string][]byte{
		"no sender":      appendHead(nil, "", kindLeaving),
		"no such kind":   appendHead(nil, "g", 99),
		"too long":       make([]byte, maxMessage+1),
		"more after it":  append(appendHead(nil, "g", kindLeaving), 0),
		"too many names": append(appendHead(nil, "g", kindPlacements), 5),
		"too many":       append(appendHead(nil, "g", kindAll), 0xff, 0xff, 0xff, 0xff, 0x7f),
	} {
		if _, err := d.decode(data); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A chain that is too long is left out, not cut, and the message stays readable.
func TestB1_LongChainsAreLeftOut(t *testing.T) {
	t.Parallel()
	long := prefix.Chain{Blocks: make([]prefix.Block, maxBlocks+1)}
	var d decoder
	m, err := d.decode(encode(t, []dispatch.Placement{{Model: "m", Replica: "r", Chain: long}, {Model: "m", Replica: "r"}}))
	if err != nil || len(m.placements) != 1 {
		t.Error(m, err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(encode(f, []dispatch.Placement{
		{Model: "m", Replica: "r", Chain: chainOf(3000, 500, 1, 1)}, {Model: "m", Replica: "r", Chain: chainOf(3000, 500, 1, 2)}}))
	f.Add(appendWaiting(appendHead(nil, "g", kindChanged), map[string]int64{"a": 3}))
	f.Add(appendHead(nil, "g", kindLeaving))
	f.Fuzz(func(t *testing.T, data []byte) {
		var d decoder
		m, err := d.decode(data)
		if err != nil || m.kind != kindPlacements {
			return
		}
		b := newBatch(m.sender)
		for i := range m.placements {
			b.add(&m.placements[i])
		}
		var again decoder
		back, err := again.decode(b.data)
		if diff := cmp.Diff(m.placements, back.placements, cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
	})
}
