package envoy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/process"
)

const (
	// silentAfter is how long the admin interface may not answer before the status says so. Envoy's
	// main thread, which answers it, is busy while it applies a large update.
	silentAfter = 5 * time.Second
	// probeTimeout bounds one Probe.
	probeTimeout = 2 * time.Second
)

// watchdog remembers since when an Envoy does not answer.
type watchdog struct {
	// answered is when the admin interface answered last, or when the watch began.
	answered time.Time
	// deaf is when the first of an unbroken row of polls ended at which neither the admin interface
	// nor the listener answered. Zero means that one of them answered at the last poll.
	deaf time.Time
}

func newWatchdog() watchdog { return watchdog{answered: time.Now()} }

// observe tells the watchdog how a poll of the admin interface and of the listener went.
func (d *watchdog) observe(admin, listener error) {
	switch {
	case admin == nil:
		*d = newWatchdog()
	case listener == nil:
		d.deaf = time.Time{}
	case d.deaf.IsZero():
		d.deaf = time.Now()
	}
}

// silentSince is Status.SilentSince.
func (d *watchdog) silentSince() time.Time {
	if time.Since(d.answered) < silentAfter {
		return time.Time{}
	}
	return d.answered
}

// hung is Status.Hung.
func (d *watchdog) hung() bool { return !d.silentSince().IsZero() && !d.deaf.IsZero() }

// bites reports whether the Envoy must be ended: neither its admin interface nor its listener has
// answered for the timeout. An Envoy whose listener answers serves its clients and is left alone. A
// timeout below 0 means never.
func (d *watchdog) bites(timeout time.Duration) bool {
	return timeout >= 0 && !d.deaf.IsZero() && time.Since(d.deaf) >= timeout
}

// probe asks whether the listener answers.
func (e *Envoy) probe(ctx context.Context) error {
	if e.cfg.Probe == nil {
		return errors.New("the admin interface alone counts")
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return e.cfg.Probe(ctx)
}

// endHung ends an Envoy that hangs. It returns false if the Envoy did not end.
func (e *Envoy) endHung(ctx context.Context, p *process.Process) bool {
	e.log.Error("hung Envoy ended", zap.Int("pid", p.PID()), zap.Duration("silent_for", e.cfg.HangTimeout))
	err := p.Stop(ctx, stopGrace)
	if err != nil {
		e.log.Error("hung Envoy not ended, trying again", zap.Error(err))
	}
	return err == nil
}

// ProbeListener returns a Probe for an HTTP listener at the address, host:port. The probe sends a
// line that is not HTTP, which Envoy's codec refuses by itself, so that the probe does not depend
// on routes, filters or Sluice. Any answer counts, as does a connection that Envoy closes: only a
// running process does either.
func ProbeListener(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		defer c.Close() //nolint:errcheck // nothing was asked for
		if deadline, ok := ctx.Deadline(); ok {
			if err := c.SetDeadline(deadline); err != nil {
				return err
			}
		}
		if _, err := c.Write([]byte("probe\r\n\r\n")); err != nil {
			return nil //nolint:nilerr // the connection was closed, which is an answer
		}
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("the listener at %s accepts connections and does not answer", address)
		}
		return nil
	}
}
