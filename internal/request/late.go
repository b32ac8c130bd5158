package request

import "sync"

// LateUsage is the usage of a response that its engine tells only after the request has ended, as
// of a response in the background. Its methods may be called from any goroutine. The zero value
// waits for the usage.
type LateUsage struct {
	mu sync.Mutex
	// usage is what the engine has told, if told. then is who waits for it. Guarded by mu.
	usage Usage
	told  bool
	then  func(Usage)
}

// Tell tells the usage. Only the first call has an effect.
func (l *LateUsage) Tell(u Usage) {
	l.mu.Lock()
	then := l.then
	if !l.told {
		l.usage, l.told = u, true
	}
	l.then = nil
	l.mu.Unlock()
	if then != nil {
		then(u)
	}
}

// Told returns the usage. ok is false if it is not known yet.
func (l *LateUsage) Told() (u Usage, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.usage, l.told
}

// Await has f called once with the usage: at once if the usage is known, else by Tell. Only one f
// waits. A nil LateUsage never calls f.
func (l *LateUsage) Await(f func(Usage)) {
	if l == nil {
		return
	}
	l.mu.Lock()
	told, usage := l.told, l.usage
	if !told {
		l.then = f
	}
	l.mu.Unlock()
	if told {
		f(usage)
	}
}
