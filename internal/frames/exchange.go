package frames

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/internal/decide"
	"github.com/sluice-gateway/sluice/internal/lazyctx"
)

// exchange is one request. It implements decide.Envoy.
type exchange struct {
	decide.Exchange
	ctx lazyctx.Context
	// reader is the goroutine that reads the connection, while it works for this request.
	reader *reader
	// begin is the beginning of the response, if it is observed. heard means that no more of it is
	// wanted. Only the reader uses both.
	begin []byte
	heard bool
	// remove are headers that the answer to the headers removes. They are removed with the answer
	// to the body.
	remove []string

	mu sync.Mutex
	// conn is the connection on which the request is known as id. Guarded by mu.
	conn *conn
	id   uint64
	// busy means that a goroutine decides the request, answered that Envoy has an answer, running
	// that it sends the request on, over that the request has ended. Guarded by mu.
	busy, answered, running, over bool
	// kept is a copy of the body that came while the headers were still looked at. Guarded by mu.
	kept []byte
}

func newExchange(r *reader, id uint64) *exchange {
	x := &exchange{conn: r.conn, id: id}
	r.server.Open(&x.Exchange, x)
	return x
}

// work calls do, which decides something of the request, unless the request has ended or has its
// answer. A body that comes meanwhile is decided as well. If the request ends meanwhile, work ends
// the exchange afterwards.
func (x *exchange) work(r *reader, do func()) {
	x.mu.Lock()
	if x.over || x.answered || x.busy {
		x.mu.Unlock()
		return
	}
	x.busy = true
	x.mu.Unlock()
	x.reader = r
	do()
	content, over := x.next()
	for ; content != nil; content, over = x.next() {
		x.body(content)
	}
	if over {
		x.End()
	}
}

// next returns the body that has come meanwhile and is still to be decided. If there is none, the
// exchange is not busy any more, and over says that the caller has to end it.
func (x *exchange) next() (content []byte, over bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	content, x.kept = x.kept, nil
	if content == nil || x.over || x.answered {
		x.reader, x.busy = nil, false
		return nil, x.over
	}
	return content, false
}

// keep keeps a copy of the body if another goroutine still looks at the headers. Otherwise it
// returns false.
func (x *exchange) keep(content []byte) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.busy && x.kept == nil {
		x.kept = bytes.Clone(content)
		return true
	}
	return false
}

// end ends the exchange. Further calls do nothing.
func (x *exchange) end() {
	if x.close() {
		x.End()
	}
}

// lose is end for a request that Envoy has not told again after its connection had broken.
func (x *exchange) lose() {
	if x.close() {
		x.Lose()
	}
}

// close notes that the request has ended. It returns whether the caller has to end the exchange.
func (x *exchange) close() bool {
	x.ctx.End()
	x.mu.Lock()
	defer x.mu.Unlock()
	now := !x.over && !x.busy
	x.over = true
	return now
}

func (x *exchange) headers(bodyless bool) {
	a := x.Headers(bodyless)
	if a.Kind == decide.Reply {
		x.answer(a)
		return
	}
	x.remove = a.Remove
}

// body has the request decided.
func (x *exchange) body(content []byte) {
	if x.conn.server.Retired() {
		x.again()
		return
	}
	a := x.Body(content)
	switch {
	case a != nil:
		x.answer(a)
	case x.Moved():
		x.again()
	}
}

// answer sends the answer to Envoy.
func (x *exchange) answer(a *decide.Answer) {
	x.mu.Lock()
	defer x.mu.Unlock()
	err := x.conn.Add(func(out []byte) []byte { // a broken connection ends the request
		if a.Kind == decide.Go {
			x.conn.Bodies += len(a.Body)
		}
		return appendAnswer(out, x.id, a, x.conn.server.flags(), x.remove)
	})
	x.answered, x.running = true, a.Kind == decide.Go && err == nil
}

// again has the filter send the request once more, over a connection to the successor.
func (x *exchange) again() {
	c, id := x.where()
	c.drop(id)
	x.end()
	_ = c.Add(func(out []byte) []byte { return appendBare(out, kindAgain, id) })
}

// where returns the connection of the request and its id there.
func (x *exchange) where() (*conn, uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.conn, x.id
}

// move tells that the request is known on another connection. It returns false if the request has
// ended.
func (x *exchange) move(to *conn, id uint64) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.conn, x.id = to, id
	return !x.over
}

// runs reports whether Envoy has an answer with which the request runs.
func (x *exchange) runs() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.running && !x.over
}

// Context implements decide.Envoy.
func (x *exchange) Context() context.Context { return &x.ctx }

// Block implements decide.Envoy: another goroutine reads the connection from now on.
func (x *exchange) Block() {
	if x.reader != nil {
		x.reader.handOver()
	}
}

// Wait implements decide.Envoy.
func (x *exchange) Wait(d time.Duration) {
	c, id := x.where()
	if c.Add(func(out []byte) []byte { return appendWait(out, id, uint32(d.Milliseconds())) }) == nil {
		c.Flush()
	}
}

// Reply implements decide.Envoy.
func (x *exchange) Reply(a *decide.Answer) error {
	c, id := x.where()
	err := c.Add(func(out []byte) []byte { return appendReply(out, id, a) })
	c.Flush()
	return err
}

// Claimed implements decide.Envoy: the relay has the request, and sees its end.
func (x *exchange) Claimed() {
	c, id := x.where()
	c.drop(id)
	x.end()
}

// Gateway implements decide.Envoy. Envoys of other hosts do not use frames.
func (x *exchange) Gateway() string { return "" }

// PID implements decide.Envoy.
func (x *exchange) PID() int {
	c, _ := x.where()
	return c.pid
}
