package stream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http/httptrace"
	"sync"
)

// payload is the body of a request to a replica. Requests, responses and connections hold on to theirs as long as a stream lasts, which is
// longer than anybody needs a long prompt: so this one can be let go.
type payload struct {
	mu sync.Mutex
	// body is nil once it was let go; guarded by mu
	body []byte
	// reader is the one that was opened last, of so many. It is a plain one, because net/http sends headers and body in one write only of those
	// that it knows. Guarded by mu.
	reader *bytes.Reader
	opened int
	// wrote is how many requests were written, well or not: while it is less, somebody may read; guarded by mu
	wrote int
}

// follow returns a context that has the payload told when it was written.
func (p *payload) follow(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) {
		p.mu.Lock()
		p.wrote++
		p.dropLocked()
		p.mu.Unlock()
	}})
}

func (p *payload) open() io.ReadCloser {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opened++
	p.reader = bytes.NewReader(p.body)
	return io.NopCloser(p.reader)
}

// again is for a request that is made once more.
func (p *payload) again() (io.ReadCloser, error) {
	p.mu.Lock()
	gone := p.body == nil
	p.mu.Unlock()
	if gone {
		return nil, errors.New("the body was let go")
	}
	return p.open(), nil
}

// letGo lets go of the body, now that no request is made with it again. What is still being written is written.
func (p *payload) letGo() {
	p.mu.Lock()
	p.body = nil
	p.dropLocked()
	p.mu.Unlock()
}

func (p *payload) dropLocked() {
	if p.body == nil && p.wrote == p.opened {
		p.reader.Reset(nil)
	}
}
