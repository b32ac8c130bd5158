package request

// Words keeps texts that occur in many entries, such as names of routes, clusters and replicas, so
// that each is allocated once. The zero value is empty. A nil Words keeps nothing. Only one
// goroutine may use it at a time.
type Words struct{ known map[string]string }

// maxWords is how many texts are kept until all are dropped. maxWord is the greatest length of one.
const maxWords, maxWord = 1024, 128

// Of returns b as a string.
func (w *Words) Of(b []byte) string {
	if w == nil {
		return string(b)
	}
	if s, ok := w.known[string(b)]; ok {
		return s
	}
	s := string(b)
	if len(s) > maxWord {
		return s
	}
	if w.known == nil || len(w.known) >= maxWords {
		w.known = make(map[string]string)
	}
	w.known[s] = s
	return s
}
