package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/sluice-gateway/sluice/internal/carry"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/internal/relay"
)

const (
	// prepareTimeout is how long a successor may take to read its configuration.
	prepareTimeout = 30 * time.Second
	// takeTimeout is how long a successor may take to adopt what runs. Meanwhile this process goes
	// on serving, with the fleet as it was.
	takeTimeout = 60 * time.Second
	// handOverPatience is how long a message of a hand-over may take, and how long clients have to
	// read that their stream ends.
	handOverPatience = 2 * time.Second
)

// Environment variables of a successor. The process removes them when it has read them.
const (
	// takeOverVariable is the number of the file descriptor of the hand-over's connection. The
	// listeners for operators follow it, see helloMessage.
	takeOverVariable = "SLUICE_TAKE_OVER"
)

// successor is what takes over from this Gateway: another process, or another Gateway in this
// process.
type successor struct {
	conn *handOverConn
	// end ends it and returns when it has ended, with the reason if there is one.
	end func() error
	// pid is the other process. prepare sets it.
	pid int
	// result receives how a Gateway in this process has ended, and stop makes it stop. They are nil
	// for another process.
	result chan error
	stop   func()
	// state returns how the other process has ended; nil: it runs, or the id is not its own.
	state func(pid int) *os.ProcessState
}

// handOver has a new process of the installed binary take over. On an error nothing has changed,
// unless managing has ended. Once the new process has been told to take over, there is no way back.
// If it fails then, takeBack has a new Gateway in this process take over.
func (g *Gateway) handOver(ctx context.Context) (*successor, error) {
	g.log.Info("hand-over started")
	s, err := g.succession.start(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.prepare(ctx, g); err != nil {
		return nil, errors.Join(err, s.end())
	}
	end, err := g.dir.HandOver()
	if err != nil {
		return nil, errors.Join(err, s.end())
	}
	defer end()
	if err := g.pause(); err != nil {
		g.log.Error("component failed during hand-over", zap.Error(err))
	}
	if err := g.giveOver(ctx, s); err != nil {
		if s, err = g.takeBack(ctx, errors.Join(err, s.end())); err != nil {
			return nil, err
		}
	}
	if s.stop != nil {
		context.AfterFunc(ctx, s.stop)
	}
	return s, nil
}

// startSuccessor starts the binary that is now at this program's path, with the arguments and the
// environment of this process. The binary also gets a connection for the hand-over and the
// listeners with TCP addresses.
func (g *Gateway) startSuccessor(context.Context) (*successor, error) {
	path, err := exec.LookPath(os.Args[0])
	if err != nil {
		return nil, fmt.Errorf("hand over: %w", err)
	}
	listeners, err := g.sockets.sharedFiles()
	if err != nil {
		return nil, fmt.Errorf("hand over: %w", err)
	}
	defer closeFiles(listeners) //nolint:errcheck // the child has copies
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("hand over: %w", err)
	}
	defer theirs.Close()
	if g.first == os.Getpid() {
		if err := process.AdoptOrphans(); err != nil {
			g.log.Warn("orphaned processes not adopted, the exit status of a later gateway may be lost", zap.Error(err))
		}
	}
	cmd := exec.Command(path, os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), takeOverVariable+"=3")
	if g.options.Temporary {
		cmd.Env = append(cmd.Env, StateDirVariable+"="+g.dir.Path())
	}
	cmd.ExtraFiles = append([]*os.File{theirs}, listeners...)
	// A group of its own: Ctrl-C in a terminal reaches the first process, which passes it on.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("hand over: start %s: %w", path, err), ours.Close())
	}
	return newChild(cmd, ours), nil
}

// newChild returns the successor that runs as cmd.
func newChild(cmd *exec.Cmd, conn net.Conn) *successor {
	var failed error
	ended := make(chan struct{})
	go func() {
		failed = cmd.Wait()
		close(ended)
	}()
	return &successor{conn: newHandOverConn(conn), end: func() error {
		_ = cmd.Process.Kill() // it may have ended by itself
		_ = conn.Close()
		<-ended
		if failed != nil && cmd.ProcessState != nil && cmd.ProcessState.Exited() {
			return fmt.Errorf("the new process ended: %w", failed)
		}
		return nil
	}, state: func(pid int) *os.ProcessState {
		select {
		case <-ended:
			if s := cmd.ProcessState; s != nil && s.Pid() == pid { // Follow may have reaped it
				return s
			}
		default:
		}
		return nil
	}}
}

// socketPair returns a connection to a file that a child process can get.
func socketPair() (ours net.Conn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	own := os.NewFile(uintptr(fds[0]), "hand-over")
	defer own.Close()
	theirs = os.NewFile(uintptr(fds[1]), "hand-over")
	if ours, err = net.FileConn(own); err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return ours, theirs, nil
}

// prepare greets the successor and waits until it can take over.
func (s *successor) prepare(ctx context.Context, g *Gateway) error {
	stop := context.AfterFunc(ctx, func() { s.conn.Close() })
	defer stop()
	hello := &helloMessage{Process: g.describe(), StateDir: g.dir.Path(), First: g.first, Frees: g.frees()}
	for _, h := range g.sockets.shared() {
		hello.Listeners = append(hello.Listeners, h.address)
	}
	sent := s.conn.send(handOverMessage{Hello: hello})
	m, err := s.conn.receive(ctx, prepareTimeout) // a process that has ended may have said why
	switch {
	case err != nil:
		return err
	case m.Prepared == nil:
		return errors.New("the new process does not know how to take over")
	case sent != nil:
		return sent
	}
	s.pid = m.Prepared.PID
	g.log.Info("new process prepared", zap.Int("pid", m.Prepared.PID), zap.String("version", m.Prepared.Version))
	return nil
}

// pause stops managing: the replicas, Envoy's process, the file, the guard, discovery. Requests
// are served on, with the fleet as it is. No task begins or ends any more. Then it releases the
// claim.
func (g *Gateway) pause() error {
	g.sockets.hold()
	err := g.managing.stop()
	if g.streams.peers != nil {
		err = errors.Join(err, g.streams.peers.Move(context.Background()))
	}
	g.admission.CloseTasks() // the successor would not see a later change
	g.dir.Release()
	return err
}

// giveOver has the successor take over, tells it what this process holds, and retires. On an error
// this process still serves.
func (g *Gateway) giveOver(ctx context.Context, s *successor) (err error) {
	if err := s.conn.send(handOverMessage{Take: g.handed()}); err != nil {
		return err
	}
	if _, err := s.conn.receive(ctx, takeTimeout); err != nil { // Listening
		return err
	}
	if err := g.predecessors.stop(); err != nil { // they connect to the successor now
		g.log.Error("earlier processes were not counted", zap.Error(err))
	}
	linking, unlink := context.WithCancel(g.serving.ctx)
	defer func() {
		if err != nil {
			g.dispatcher.WatchTickets(nil)
			g.dispatcher.WatchResponses(nil)
			g.succession.link.Store(nil)
			g.succession.relay.Store(nil)
			unlink()
		}
	}()
	g.succession.relay.Store(new(relay.Forwarder(carry.Forwarder("unix", relaySocket(g.dir), g.log))))
	link := carry.NewLink(carrySocket(g.dir), g.describe(), g.orderDrain, g.log)
	link.Begun = func(id string, begin []byte) { g.requests.FirstToken(id, begin) }
	g.dispatcher.WatchTickets(link)
	g.dispatcher.WatchResponses(link.Learned)
	g.tellEnded(link)
	for _, r := range g.responses.unsaved() { // after WatchResponses, so that no response is missed
		link.Learned(r)
	}
	g.serving.Go(func() error { return link.Run(linking) })
	if _, err := s.conn.receive(ctx, takeTimeout); err != nil { // Serving
		return err
	}
	return g.retire()
}

// handed is what the successor must know beside the state directory.
func (g *Gateway) handed() *takeMessage {
	m := &takeMessage{Predecessors: 1 + len(g.carried.Predecessors()), Routable: g.envoy.server.Routable()}
	for at, n := range g.dispatcher.RecoveredAt() {
		m.Recovered = append(m.Recovered, recoveredAt{at.Model, at.Address, at.Cluster, n})
	}
	return m
}

func (g *Gateway) describe() carry.Process {
	return carry.Process{PID: os.Getpid(), Version: g.options.Version, Started: g.started, Instance: g.instance, Socket: carriedSocket(g.dir, g.instance)}
}

// takeOver is the hand-over as the successor sees it.
type takeOver struct {
	conn *handOverConn
	// files returns the n file descriptors of listeners that the predecessor passes on.
	files func(n int) []*os.File
	// listeners are those by their addresses.
	listeners map[string]net.Listener
	take      takeMessage
}

// inheritedTakeOver returns the hand-over that this process was started for. nil: it was started by
// someone else.
func inheritedTakeOver() (*takeOver, error) {
	fd, err := strconv.Atoi(os.Getenv(takeOverVariable))
	if err != nil {
		return nil, nil //nolint:nilerr // the variable is not set
	}
	if err := os.Unsetenv(takeOverVariable); err != nil { // child processes must not inherit it
		return nil, err
	}
	connection := os.NewFile(uintptr(fd), "hand-over")
	defer connection.Close()
	conn, err := net.FileConn(connection)
	if err != nil {
		return nil, fmt.Errorf("take over: %w", err)
	}
	return &takeOver{conn: newHandOverConn(conn), files: func(n int) (all []*os.File) {
		for i := range n {
			all = append(all, os.NewFile(uintptr(fd+1+i), "listener"))
		}
		return all
	}}, nil
}

// inherit makes listeners of the file descriptors that the predecessor passes on.
func (t *takeOver) inherit(addresses []string) error {
	t.listeners = map[string]net.Listener{}
	files := t.files(len(addresses))
	defer closeFiles(files) //nolint:errcheck // the listeners are copies
	for i, address := range addresses {
		l, err := net.FileListener(files[i])
		if err != nil {
			return fmt.Errorf("take over: listener %s: %w", address, err)
		}
		t.listeners[address] = l
	}
	return nil
}

// close closes the listeners of a takeover that has failed or ended.
func (t *takeOver) close() {
	for _, l := range t.listeners {
		_ = l.Close() // the servers of this process have closed some
	}
}

// closeUnused closes the listeners at addresses that the configuration does not have any more.
func (t *takeOver) closeUnused(s *sockets) {
	for _, h := range s.shared() {
		delete(t.listeners, h.address)
	}
	for _, l := range t.listeners {
		l.Close()
	}
}

// ReportFailedStart tells the process that has started this one for a hand-over why it could not
// start. It does nothing in a process that was started otherwise, or once Run has begun.
func ReportFailedStart(why error) {
	if t, err := inheritedTakeOver(); err == nil {
		_ = t.fail(why)
	}
}

// fail tells the predecessor, if there is one, why this process does not take over, and returns
// why.
func (t *takeOver) fail(why error) error {
	if t != nil {
		_ = t.conn.send(handOverMessage{Failed: why.Error()}) // the predecessor also sees that this process ends
		t.conn.Close()
	}
	return why
}

// takeOver takes over from the predecessor and then runs the gateway. It claims the directory
// when the predecessor has released it.
func (g *Gateway) takeOver(ctx context.Context, from *takeOver) (err error) {
	defer from.close()
	defer func() {
		if err != nil {
			_ = from.fail(err)
		}
	}()
	m, err := from.conn.receive(ctx, prepareTimeout)
	if err != nil {
		return fmt.Errorf("take over: %w", err)
	}
	if m.Hello == nil || m.Hello.StateDir != g.dir.Path() {
		return errors.New("take over: the configuration names another state_dir than before: stop the gateway and start it again")
	}
	g.first = m.Hello.First
	g.dir.AddOwn(g.first) // both stay for a while
	g.dir.AddOwn(m.Hello.PID)
	if err := from.inherit(m.Hello.Listeners); err != nil {
		return err
	}
	if err := g.checkTakeOver(ctx, m.Hello); err != nil {
		return err
	}
	self := g.describe()
	if err := from.conn.send(handOverMessage{Prepared: &self}); err != nil {
		return fmt.Errorf("take over: %w", err)
	}
	if m, err = from.conn.receive(ctx, 0); err != nil {
		return fmt.Errorf("take over: %w", err)
	}
	if m.Take == nil {
		return errors.New("take over: the running process does not hand over")
	}
	from.take = *m.Take
	if err := g.dir.Claim(ctx); err != nil {
		return err
	}
	defer g.dir.Release()
	return g.run(ctx, from)
}

// recover counts what the predecessor had recovered itself.
func (t *takeOver) recover(d *dispatch.Dispatcher) {
	running := map[dispatch.Location]int{}
	for _, r := range t.take.Recovered {
		cluster := cmp.Or(r.Cluster, headers.ModelCluster(r.Model)) // an earlier release does not tell it
		running[dispatch.Location{Model: r.Model, Address: r.Address, Cluster: cluster}] = r.Requests
	}
	d.Recover(running)
}

// awaitPredecessors tells the predecessor that its requests can be counted here, and waits until
// all predecessors have told theirs. One that does not is counted when it comes.
func (t *takeOver) awaitPredecessors(ctx context.Context, g *Gateway) error {
	if err := t.conn.send(handOverMessage{Listening: true}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, handOverPatience)
	defer cancel()
	if err := g.carried.Await(ctx, t.take.Predecessors); err != nil {
		g.log.Warn("requests of earlier processes are counted late", zap.Error(err))
	}
	return nil
}
