package gateway

import (
	"context"
	"errors"
	"net"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/process"
)

const (
	// retakePause is the time before this process tries again to replace a failed successor.
	retakePause = time.Second
	// maxRetakePause bounds that time, which doubles with each try that fails.
	maxRetakePause = 30 * time.Second
)

// pauseAfter returns the time before the next try when so many have failed, at least one.
func pauseAfter(failed int) time.Duration {
	pause := retakePause
	for ; failed > 1 && pause < maxRetakePause; failed-- {
		pause *= 2
	}
	return min(pause, maxRetakePause)
}

// errToldToStop says that the gateway was told to stop before a process has taken over.
var errToldToStop = errors.New("the gateway was told to stop")

// takeBack has a Gateway in this process take over after a successor has failed, and tries again
// until one does. why is how the successor has failed. Between two tries this process has the
// claim, so that the guard ends nothing and signals come here. When the gateway is told to stop,
// takeBack returns errToldToStop and keeps the claim: this Gateway then stops everything itself.
func (g *Gateway) takeBack(ctx context.Context, why error) (*successor, error) {
	for failed := 1; ; failed++ {
		g.log.Error("new process did not take over, this one takes its place", zap.Error(why))
		g.succession.failure.note(why)
		s, err := g.replaceSuccessor(context.WithoutCancel(ctx)) // a Gateway that was told to stop first takes over, too
		if err == nil {
			return s, nil
		}
		why = err
		if err := g.dir.Claim(context.WithoutCancel(ctx)); err != nil {
			return nil, errors.Join(why, err)
		}
		if g.toldToStop(ctx, pauseAfter(failed)) {
			return nil, errors.Join(errToldToStop, why)
		}
		g.dir.Release()
	}
}

// replaceSuccessor has a Gateway in this process take over.
func (g *Gateway) replaceSuccessor(ctx context.Context) (*successor, error) {
	s, err := g.startInProcess(ctx)
	if err != nil {
		return nil, err
	}
	if err = s.prepare(ctx, g); err == nil {
		err = g.giveOver(ctx, s)
	}
	if err != nil {
		return nil, errors.Join(err, s.end())
	}
	return s, nil
}

// toldToStop waits and reports whether the gateway is told to stop meanwhile. It ignores signals of
// other kinds: nothing can be reloaded or restarted before a Gateway has taken over.
func (g *Gateway) toldToStop(ctx context.Context, wait time.Duration) bool {
	over := time.After(wait)
	for {
		select {
		case <-ctx.Done():
			return true
		case s := <-g.signals:
			if s == process.StopSignal {
				return true
			}
		case <-over:
			return false
		}
	}
}

// startInProcess makes a Gateway in this process that takes over with the configuration in force.
// Fields that need a restart keep their values: it has the listeners of this process and no others.
func (g *Gateway) startInProcess(ctx context.Context) (*successor, error) {
	return g.startGateway(ctx, g.optionsInForce())
}

// startGateway makes a Gateway in this process that takes over with other options.
func (g *Gateway) startGateway(ctx context.Context, o Options) (*successor, error) {
	dir, err := process.Open(g.dir.Path(), g.log)
	if err != nil {
		return nil, err
	}
	listeners, err := g.sockets.sharedFiles()
	if err != nil {
		return nil, err
	}
	next, err := New(dir, o)
	if err != nil {
		return nil, errors.Join(err, closeFiles(listeners))
	}
	next.first, next.signals, next.stops = g.first, g.signals, g.stops
	next.succession.failure.why, next.succession.failure.at = g.succession.failure.last()
	next.access.Store(g.access.Load())
	ours, theirs := net.Pipe()
	from := &takeOver{conn: newHandOverConn(theirs), files: func(int) []*os.File { return listeners }}
	result, ended := make(chan error, 1), make(chan error, 1)
	taking, cancel := context.WithCancel(ctx)
	go func() {
		err := next.takeOver(taking, from)
		_ = closeFiles(listeners) // takeOver has closed them, unless it has failed before
		ended <- err
		result <- err
	}()
	return &successor{conn: newHandOverConn(ours), result: result, stop: cancel, end: func() error {
		cancel()
		_ = ours.Close()
		return <-ended
	}}, nil
}

// optionsInForce returns the options of a Gateway that takes the place of this one.
func (g *Gateway) optionsInForce() Options {
	g.settings.applying.Lock()
	defer g.settings.applying.Unlock()
	o := g.options
	o.Config, o.file = g.config().WithoutRestart(o.Config), g.settings.file
	o.Force = true // an operator has confirmed what is in force
	return o
}
