package openai

// TurnKeys are the cache keys of a conversation over all its user messages, over all but the last, and so on down to the first: at
// most so many, the longest first, each what CacheKey would say. A request without a user message has none. body must be
// the bytes that were scanned. The work is that of one cache key over all of them.
func (r *Request) TurnKeys(body []byte, most int) []uint64 {
	r.mustBe(body)
	users := 0
	for _, t := range r.turns {
		if t.role == roleUser {
			users++
		}
	}
	keys := make([]uint64, min(users, max(most, 0)))
	if len(keys) == 0 {
		return nil
	}
	k := keyHash{body: body}
	k.digest.Reset()
	for _, t := range r.turns {
		if t.role == roleSystem {
			k.add(t.text)
		}
	}
	for _, t := range r.turns {
		if t.role != roleUser {
			continue
		}
		k.add(t.text)
		if users--; users < len(keys) {
			keys[users] = k.sum()
		}
	}
	return keys
}
