package join

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestX9_ACallWithoutAMessageEnds: neither a stranger nor a node keeps a call open by sending
// nothing.
func TestX9_ACallWithoutAMessageEnds(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	g.stop()
	g.config.MessageTimeout = 50 * time.Millisecond
	g.start()
	a := g.agentPlan("n", "127.0.0.1", nodeDir(t)).run(t, nil)
	g.waitConnected("n")
	i, err := a.store.identity()
	if err != nil {
		t.Fatal(err)
	}
	stranger := dialGateway(t, g, &tls.Config{InsecureSkipVerify: true})
	node := dialGateway(t, g, identityTLS(i))
	for name, call := range map[string]struct {
		conn   *grpc.ClientConn
		method string
	}{
		"join": {stranger, joinMethod}, "renew": {node, renewMethod}, "run": {node, runMethod}, "log": {node, logMethod},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
		stream, err := call.conn.NewStream(ctx, runStreamDesc(), call.method)
		if err == nil {
			err = stream.RecvMsg(new(order))
		}
		if status.Code(err) != codes.DeadlineExceeded || ctx.Err() != nil {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
	g.waitConnected("n")
}

// TestX9_ConnectionsOfStrangersAreBounded: one address may have so many connections without a
// certificate. Connections of nodes do not count, and a place becomes free with its connection.
func TestX9_ConnectionsOfStrangersAreBounded(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	g.agentPlan("n", "127.0.0.1", nodeDir(t)).run(t, nil)
	g.waitConnected("n")
	dial := func() net.Conn {
		c, err := net.Dial("tcp", g.address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	isClosed := func(c net.Conn) bool {
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		_, err := io.Copy(io.Discard, c)
		return err == nil
	}
	var first, last net.Conn
	for range maxStrangersOfSource {
		if last = dial(); first == nil {
			first = last
		}
	}
	if isClosed(last) {
		t.Fatal("a connection below the bound is closed")
	}
	eventually(t, "a further one is closed", func() bool { return isClosed(dial()) })
	_ = first.Close()
	eventually(t, "a place is free again", func() bool { return !isClosed(dial()) })
}
