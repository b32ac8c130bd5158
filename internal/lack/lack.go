// Package lack tells faults of this machine from faults of those that it calls. The relay uses it,
// and so do the probes of replicas, the state directory and the servers that accept connections.
package lack

import (
	"errors"
	"slices"
	"syscall"
	"time"
)

// IsOwn reports whether a connection or a file could not be opened because this machine lacks
// something: files, ports or memory. Nobody that is called is to blame for that.
func IsOwn(err error) bool {
	lacks := []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL}
	return slices.ContainsFunc(lacks, func(lack error) bool { return errors.Is(err, lack) })
}

// IsTemporary reports whether a later accept may succeed after this error: this machine lacks
// something, or the client has left. To net, a lack of memory is not temporary.
func IsTemporary(err error) bool {
	temporary, ok := err.(interface{ Temporary() bool })
	return ok && temporary.Temporary() || IsOwn(err) || errors.Is(err, syscall.ECONNABORTED)
}

// acceptPause is the pause after an accept that failed, for example without file descriptors.
const acceptPause = 50 * time.Millisecond

// Accept calls accept, and again after a pause while that fails for a time only. failed is told of
// each such failure.
func Accept[C any](accept func() (C, error), failed func(error)) (C, error) {
	for {
		c, err := accept()
		if !IsTemporary(err) {
			return c, err
		}
		failed(err)
		time.Sleep(acceptPause)
	}
}
