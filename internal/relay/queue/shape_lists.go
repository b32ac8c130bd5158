package queue

import "slices"

// readLogprobs reads a choice's logprobs: null, or an object of lists.
func (s *shape) readLogprobs(c *choice) bool {
	k := s.r.Kind()
	c.logprobs.from = s.pos()
	ok := false
	switch k {
	case 'n':
		ok = s.r.Null()
	case '{':
		ok = s.each(&c.logs, func(name []byte) bool {
			i := indexOf(listNames[:], name)
			return i >= 0 && !c.lists[i].there() && s.readList(&c.lists[i], &c.listed[i])
		})
	}
	c.logprobs.to = s.pos()
	return ok
}

// readList reads a list or a null.
func (s *shape) readList(v *span, c *container) bool {
	if s.r.Kind() == 'n' {
		return s.value(v)
	}
	v.from = s.pos()
	for more := s.r.Open('['); more; more = s.r.More('[') {
		s.r.Skip()
		c.members++
	}
	v.to = s.pos()
	c.end = v.to - 1
	return true // read finds a fault at the end of the text
}

// readCalls reads the tool calls of a delta.
func (s *shape) readCalls(c *choice) bool {
	if s.r.Kind() == 'n' {
		return s.value(&c.calls)
	}
	c.calls.from = s.pos()
	first := len(s.calls)
	for more := s.r.Open('['); more; more = s.r.More('[') {
		k := call{span: span{from: s.pos()}, choice: len(s.choices)}
		if !s.readCall(&k) || !k.hasIndex || findCall(s.calls[first:], k.index) >= 0 {
			return false
		}
		k.to = s.pos()
		s.calls = append(s.calls, k)
		c.callList.members++
	}
	c.calls.to = s.pos()
	c.callList.end = c.calls.to - 1
	return true
}

// callsOf returns the tool calls of the choice at a position of s.choices.
func (s *shape) callsOf(position int) []call {
	from := slices.IndexFunc(s.calls, func(k call) bool { return k.choice == position })
	if from < 0 {
		return nil
	}
	to := from
	for to < len(s.calls) && s.calls[to].choice == position {
		to++
	}
	return s.calls[from:to]
}

func findCall(calls []call, index int64) int {
	return slices.IndexFunc(calls, func(k call) bool { return k.index == index })
}

func (s *shape) readCall(k *call) bool {
	var whole container
	var id span
	return s.each(&whole, func(name []byte) bool {
		switch string(name) {
		case "index":
			again := k.hasIndex
			k.index, k.hasIndex = s.r.Int()
			return !again
		case "id":
			k.head = k.head || s.r.Kind() != 'n'
			return s.text(&id)
		case "type":
			return s.text(&k.typ)
		case "function":
			return k.function.end == 0 && s.readFunction(k)
		}
		return false
	})
}

func (s *shape) readFunction(k *call) bool {
	var title span
	return s.each(&k.function, func(name []byte) bool {
		switch string(name) {
		case "name":
			k.head = k.head || s.r.Kind() != 'n'
			return s.text(&title)
		case "arguments":
			return s.text(&k.args)
		}
		return false
	})
}
