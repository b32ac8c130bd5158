package jwks

import (
	"crypto/sha256"
	"sync"
	"sync/atomic"
)

// seenTokens is the number of tokens in one generation of seen.
const seenTokens = 8192

// seen has the tokens that were verified, by their SHA-256. It has two generations. When the newer
// one is full, it becomes the older one, and the older one is forgotten. So seen is bounded, and a
// token in use stays.
type seen struct {
	newer, older atomic.Pointer[generation]
}

type generation struct {
	entries sync.Map
	size    atomic.Int64
}

// entry is what is kept of a token that was verified.
type entry struct {
	identity Identity
	// print is the thumbprint of its key.
	print  string
	claims claims
}

func newSeen() *seen {
	s := &seen{}
	s.newer.Store(new(generation))
	s.older.Store(new(generation))
	return s
}

// get returns a token. A token of the older generation moves to the newer one.
func (s *seen) get(digest [sha256.Size]byte) (entry, bool) {
	if e, ok := s.newer.Load().entries.Load(digest); ok {
		return e.(entry), true
	}
	e, ok := s.older.Load().entries.Load(digest)
	if !ok {
		return entry{}, false
	}
	s.put(digest, e.(entry))
	return e.(entry), true
}

func (s *seen) put(digest [sha256.Size]byte, e entry) {
	g := s.newer.Load()
	if _, known := g.entries.LoadOrStore(digest, e); known || g.size.Add(1) <= seenTokens {
		return
	}
	if s.newer.CompareAndSwap(g, new(generation)) {
		s.older.Store(g)
	}
}
