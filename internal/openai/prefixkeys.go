package openai

// PrefixKeys returns the cache keys of a conversation's beginnings: over all its user messages,
// over all but the last, and so on down to the first. Each key is what CacheKey returns for as many
// user messages. The longest beginning comes first, and there are at most limit keys. A request
// without a user message has none. body must be the bytes that were scanned.
//
// The work is that of one cache key over all user messages.
func (r *Request) PrefixKeys(body []byte, limit int) []uint64 {
	r.mustBe(body)
	users := 0
	for _, m := range r.messages {
		if m.keyed && m.role == roleUser {
			users++
		}
	}
	keys := make([]uint64, min(users, max(limit, 0)))
	if len(keys) == 0 {
		return nil
	}
	k := keyHash{body: body}
	k.digest.Reset()
	for _, m := range r.messages {
		if m.keyed && m.role == roleSystem {
			k.add(m.text)
		}
	}
	for _, m := range r.messages {
		if !m.keyed || m.role != roleUser {
			continue
		}
		k.add(m.text)
		if users--; users < len(keys) {
			keys[users] = k.sum()
		}
	}
	return keys
}
