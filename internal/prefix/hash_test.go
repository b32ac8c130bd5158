package prefix

import (
	"math/bits"
	"math/rand/v2"
	"testing"
)

// hashOf returns the hash of a text with a mark at a length.
func hashOf(text []byte, mark uint64, at int) uint64 {
	var h hash
	h.reset()
	h.write(text[:at])
	h.mark(mark, uint32(at))
	h.write(text[at:])
	return h.sum(uint32(len(text)))
}

// Every bit of the text, the mark, its place and the length change about half of the hash.
func TestB1_HashOfEveryBit(t *testing.T) {
	t.Parallel()
	var text [3*stripe + 7]byte
	for i := range text {
		text[i] = byte('a' + i%23)
	}
	const at = stripe + 5
	want := hashOf(text[:], 1, at)
	flipped, changes := 0, 0
	check := func(what string, place int, got uint64) {
		n := bits.OnesCount64(got ^ want)
		if n < 10 || n > 54 {
			t.Errorf("%s %d: %d of 64 bits changed", what, place, n)
		}
		flipped += n
		changes++
	}
	for i := range 8 * len(text) {
		text[i/8] ^= 1 << (i % 8)
		check("bit", i, hashOf(text[:], 1, at))
		text[i/8] ^= 1 << (i % 8)
	}
	for i := range text {
		if i != at {
			check("place", i, hashOf(text[:], 1, i))
		}
	}
	for i := range uint64(64) {
		check("mark", int(i), hashOf(text[:], 1^1<<i, at))
	}
	check("length", len(text)-1, hashOf(append(text[:len(text)-1:len(text)-1], 0), 1, at))
	if mean := float64(flipped) / float64(changes); mean < 31 || mean > 33 {
		t.Errorf("a change flips %.1f bits, want 32", mean)
	}
}

// Texts that differ little have hashes that differ, also in their low bits, which choose buckets.
func TestB1_HashesOfSimilarTexts(t *testing.T) {
	t.Parallel()
	const count = 1 << 18
	seen := make(map[uint64]bool, count)
	var buckets [1 << 10]int
	text := make([]byte, 80)
	for i := range uint32(count) {
		for k := range 18 {
			text[k*4] = 'a' + byte(i>>k&1)
		}
		n := hashOf(text, 1, 0)
		if seen[n] {
			t.Fatalf("text %d has the hash of another", i)
		}
		seen[n] = true
		buckets[n%uint64(len(buckets))]++
	}
	for i, n := range buckets {
		if n < 256-100 || n > 256+100 { // six standard deviations
			t.Errorf("bucket %d has %d texts, want about 256", i, n)
		}
	}
}

// Stripes have the same hash in assembly as without, whatever was hashed before.
func TestB1_WideHashIsTheHash(t *testing.T) {
	t.Parallel()
	text := make([]byte, 41*stripe+1)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range text {
		text[i] = byte(rng.Uint32())
	}
	for stripes := range 40 {
		for from := range 2 {
			var l, plain lanes
			for i := range l.sums {
				l.sums[i], l.keys[i] = rng.Uint64(), rng.Uint64()
			}
			plain = l
			l.take(text[from : from+stripes*stripe+stripe/2])
			plain.takePlainly(text[from : from+stripes*stripe+stripe/2])
			if l != plain {
				t.Fatalf("%d stripes: %v, want %v", stripes, l, plain)
			}
		}
	}
}

// The same stripes in another order have another hash, at any distance.
func TestB1_HashOfTheOrder(t *testing.T) {
	t.Parallel()
	text := make([]byte, 300*stripe)
	for i := range text {
		text[i] = "words in lines\n"[i/7%15]
	}
	want := hashOf(text, 1, 0)
	swap := func(a, b int) {
		for i := range stripe {
			text[a*stripe+i], text[b*stripe+i] = text[b*stripe+i], text[a*stripe+i]
		}
	}
	for other := 1; other < len(text)/stripe; other++ {
		if string(text[:stripe]) == string(text[other*stripe:][:stripe]) {
			continue
		}
		swap(0, other)
		if hashOf(text, 1, 0) == want {
			t.Errorf("stripes 0 and %d may change places", other)
		}
		swap(0, other)
	}
}
