package extproc

import (
	"os"
	"testing"
	"time"
)

// When a process retires, the exchanges that are not decided move to its successor: one that waits,
// one whose body is still to come, and new ones. The decided ones stay.
func TestX20_UndecidedExchangesMove(t *testing.T) {
	s, d := newServer(t)
	next, nextDispatcher := newServer(t)
	var running []*envoy
	for range 2 {
		e := open(t, s)
		e.headers(key)
		e.body(`{"model":"m"}`)
		running = append(running, e)
	}
	waits, early := open(t, s), open(t, s)
	waits.headers(key)
	if a := waits.body(`{"model":"m"}`); a.GetOverrideMessageTimeout() == nil {
		t.Fatalf("the request does not wait: %v", a)
	}
	early.headers(key)

	s.Retire(serveMethod(t, next.Open))
	d.Retire()
	if a := <-waits.toEnvoy; a.GetRequestBody() == nil {
		t.Errorf("the request that waited got %v", a)
	}
	if a := early.body(`{"model":"m"}`); a.GetRequestBody() == nil {
		t.Errorf("the request whose body was to come got %v", a)
	}
	late := open(t, s)
	if a := late.headers("authorization: Bearer wrong"); a.GetImmediateResponse().GetStatus().GetCode() != 401 {
		t.Errorf("a new request with a wrong key got %v", a)
	}
	until(t, "the two moved requests run at the successor", func() bool {
		v, _ := nextDispatcher.View("m")
		return v.InFlight == 2
	})
	if v, _ := d.View("m"); v.InFlight != 2 || v.Queued != 0 || !s.Busy() {
		t.Errorf("the decided requests have not stayed: %+v", v)
	}
	waits.reset() // its client leaves
	until(t, "its slot at the successor is free", func() bool {
		v, _ := nextDispatcher.View("m")
		return v.InFlight == 1
	})
	running[0].reset()
	until(t, "the slot of a request that stayed is free", func() bool {
		v, _ := d.View("m")
		return v.InFlight == 1
	})
}

// An exchange that ends is asked of its Envoy later, which may have died. One that another process
// has passed on comes from that process and not from Envoy, so nobody knows its Envoy.
func TestX20_E3_APassedExchangeIsNotLostWithItsProcess(t *testing.T) {
	t.Parallel()
	s, d := newServer(t)
	next, nextDispatcher := newServer(t)
	asked := make(chan int, 4)
	next.Lives = func(pid int) bool { asked <- pid; return true }
	moves := open(t, s)
	moves.headers(key)
	s.Retire(serveMethod(t, next.Open))
	d.Retire()
	moves.body(`{"model":"m"}`)
	direct := open(t, next)
	direct.headers(key)
	direct.body(`{"model":"m"}`)
	moves.reset()
	until(t, "the slot of the passed request is free", func() bool { v, _ := nextDispatcher.View("m"); return v.InFlight == 1 })
	direct.reset()
	if pid := <-asked; pid != os.Getpid() {
		t.Errorf("asked for process %d", pid)
	}
	select {
	case <-asked:
		t.Error("the process that has passed an exchange on counts as its Envoy")
	case <-time.After(100 * time.Millisecond):
	}
}
