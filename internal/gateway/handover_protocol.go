package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/sluice-gateway/sluice/internal/carry"
)

// handOverMessage is one message of a hand-over. The process that runs (the predecessor) and the
// one that replaces it (the successor) exchange them as JSON over a socket pair:
//
//	predecessor  Hello      what runs
//	successor    Prepared   it has read its configuration and can take over; or Failed
//	predecessor  Take       it has stopped managing and released the claim
//	successor    Listening  it has adopted everything, and counts what its predecessors hold
//	successor    Serving    Envoy reaches it at every socket
//
// The two may be different versions, so a field that one does not know means nothing to it.
type handOverMessage struct {
	Hello     *helloMessage  `json:"hello,omitempty"`
	Prepared  *carry.Process `json:"prepared,omitempty"`
	Failed    string         `json:"failed,omitempty"`
	Take      *takeMessage   `json:"take,omitempty"`
	Listening bool           `json:"listening,omitempty"`
	Serving   bool           `json:"serving,omitempty"`
}

// helloMessage says what the predecessor is.
type helloMessage struct {
	carry.Process
	StateDir string `json:"state_dir"`
	// Listeners are the addresses of the listeners for operators. Their file descriptors follow
	// that of the connection, in this order.
	Listeners []string `json:"listeners"`
	// Frees are the addresses at which the predecessor listens until it sends Take. nil: it is of
	// an earlier release, which does not tell them.
	Frees []string `json:"frees"`
	// First is the process that the supervisor of the gateway knows.
	First int `json:"first"`
}

// takeMessage is what the successor must know beside the state directory.
type takeMessage struct {
	// Predecessors is the number of processes that will connect to tell what they hold.
	Predecessors int `json:"predecessors"`
	// Recovered are the requests of before a crash that Envoy still carries.
	Recovered []recoveredAt `json:"recovered,omitempty"`
	// Routable are the replicas that the Envoys of the gateway have, by cluster and id.
	Routable map[string]map[string]netip.AddrPort `json:"routable,omitempty"`
}

// recoveredAt is a number of recovered requests at one location.
type recoveredAt struct {
	Model    string `json:"model"`
	Address  string `json:"address"`
	Cluster  string `json:"cluster"`
	Requests int    `json:"requests"`
}

// handOverConn is one end of the connection of a hand-over.
type handOverConn struct {
	net.Conn
	in *json.Decoder
}

func newHandOverConn(c net.Conn) *handOverConn { return &handOverConn{c, json.NewDecoder(c)} }

// send sends a message. The other side reads it soon or is gone.
func (c *handOverConn) send(m handOverMessage) error {
	if err := c.SetWriteDeadline(time.Now().Add(handOverPatience)); err != nil {
		return err
	}
	return json.NewEncoder(c).Encode(m)
}

// stopPatience is how long a message may take that is waited for when the gateway is told to stop.
const stopPatience = 10 * time.Second

// receive waits for the next message, and at most stopPatience after the end of ctx. The error is
// that of the other side if it has failed.
func (c *handOverConn) receive(ctx context.Context, timeout time.Duration) (handOverMessage, error) {
	var m handOverMessage
	var deadline time.Time
	if timeout > 0 {
		deadline = time.Now().Add(timeout)
	}
	if err := c.SetReadDeadline(deadline); err != nil {
		return m, err
	}
	defer context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Now().Add(stopPatience)) })()
	var late net.Error
	switch err := c.in.Decode(&m); {
	case errors.As(err, &late) && late.Timeout():
		return m, errors.New("the other process did not answer in time")
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET):
		return m, errOtherEnded
	case err != nil:
		return m, err
	case m.Failed != "":
		return m, errors.New(m.Failed)
	}
	return m, nil
}

// errOtherEnded says that the other process of a hand-over has ended without a word.
var errOtherEnded = errors.New("the other process ended")
