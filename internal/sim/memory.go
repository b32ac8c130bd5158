package sim

import (
	"slices"
	"time"
)

// reserveLocked gives a sequence the memory for its prompt, and for the tokens that it has
// generated before a preemption. It returns false if other sequences hold too much. A sequence that
// runs alone gets what there is: the part beyond the memory costs nothing and is never cached.
func (s *scheduler) reserveLocked(q *sequence) bool {
	tokens := q.tokens()
	q.skipped = 0
	if s.memory == nil {
		return true
	}
	hashes := q.hashes()
	// The last token is always computed, because the next token comes from its output.
	found := s.memory.match(hashes[:min(len(hashes), max(tokens-1, 0)/s.memory.blockSize)])
	fresh := s.memory.blocksFor(tokens) - len(found)
	if !s.memory.fits(found, fresh) && s.runningLocked() > 0 {
		return false
	}
	s.memory.hold(found)
	q.blocks = slices.Concat(found, s.memory.allocate(fresh))
	q.skipped = len(found) * s.memory.blockSize
	// As in vLLM, the next sequence that is admitted already finds these blocks. Its prefill comes
	// after the prefill of this sequence.
	for i := range min(len(hashes), len(q.blocks)) {
		s.memory.setHash(q.blocks[i], hashes[i])
	}
	return true
}

// growLocked gives every decoding sequence the memory for its next token. If there is none, it
// preempts the sequences that were admitted last.
func (s *scheduler) growLocked(at time.Time) {
	if s.memory == nil {
		return
	}
	for i := 0; i < len(s.decoding); i++ {
		q := s.decoding[i]
		for q.state == stateDecoding && len(q.blocks)*s.memory.blockSize < q.tokens() {
			more := s.memory.allocate(1)
			q.blocks = append(q.blocks, more...)
			if len(more) == 0 && !s.preemptLocked(at) {
				break
			}
		}
	}
}

// preemptLocked takes the memory and the slot of the sequence that was admitted last, and puts it
// before all that wait. It returns false if only one sequence runs.
func (s *scheduler) preemptLocked(at time.Time) bool {
	if s.runningLocked() < 2 {
		return false
	}
	var last *sequence
	if n := len(s.prefilling); n > 0 {
		last = s.prefilling[n-1] // each of them was admitted after those that decode
	} else {
		for _, q := range s.decoding {
			if last == nil || q.admission > last.admission {
				last = q
			}
		}
	}
	s.leaveSlotLocked(last, at)
	last.state = stateWaiting
	s.waiting = append([]*sequence{last}, s.waiting...)
	s.metrics.preemptions.Inc()
	return true
}

// leaveSlotLocked removes a sequence from those that prefill or decode, and frees its memory.
func (s *scheduler) leaveSlotLocked(q *sequence, at time.Time) {
	computed := q.tokens() - 1 // the token generated last has not been read by the engine
	if q.state == stateDecoding {
		s.removeDecodingLocked(q)
	} else {
		computed = q.skipped
		if s.prefilling[0] == q {
			computed += s.prefilledTokensLocked(at)
			s.prefillEndAt = time.Time{}
		}
		s.prefilling = remove(s.prefilling, q)
		s.queuedTokens -= q.tokens() - q.skipped
	}
	s.freeLocked(q, computed)
}

// prefilledTokensLocked returns how many tokens of the present prefill have been computed.
func (s *scheduler) prefilledTokensLocked(at time.Time) int {
	q := s.prefilling[0]
	took := s.prefillEndAt.Sub(s.prefillStartAt)
	if s.prefillEndAt.IsZero() || took <= 0 {
		return 0
	}
	return int(float64(q.tokens()-q.skipped) * at.Sub(s.prefillStartAt).Seconds() / took.Seconds())
}

// freeLocked frees the memory of a sequence that has computed so many tokens. The full blocks stay
// cached.
func (s *scheduler) freeLocked(q *sequence, computed int) {
	if s.memory == nil {
		return
	}
	hashes := q.hashes()
	full := min(len(hashes), computed/s.memory.blockSize, len(q.blocks))
	for i, b := range q.blocks {
		switch {
		case i < full:
			s.memory.setHash(b, hashes[i])
		case b.refs == 1:
			s.memory.removeHash(b)
		}
	}
	s.memory.release(q.blocks)
	q.blocks = nil
}

// tokens returns the number of tokens of the prompt and of the answer so far.
func (q *sequence) tokens() int { return q.prompt.tokens + int(q.produced.Load()) }

// hashes returns the hashes of the full blocks of the prompt and of the answer so far.
func (q *sequence) hashes() []uint64 {
	produced := int(q.produced.Load())
	if produced == 0 || q.text == nil || q.prompt.blockSize == 0 {
		return q.prompt.blocks
	}
	if q.blocks != nil { // an answer may be far longer than the memory
		produced = min(produced, max(len(q.blocks)*q.prompt.blockSize-q.prompt.tokens, 0)+1)
	}
	return q.prompt.blocksWith(q.text(produced))
}
