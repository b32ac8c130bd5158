package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

const (
	// longestSocketName is in bytes.
	longestSocketName = 31
	// longestSocketPath is what fits into sockaddr_un beside the final zero (unix(7)).
	longestSocketPath = 107
)

// Dir is a state directory and the processes that belong to it. Its methods are safe for concurrent use.
type Dir struct {
	path    string
	id      string
	sockets string
	log     *zap.Logger
	// rotating is held while a log is rotated. Whoever holds mu may wait for it, not the other way round.
	rotating sync.Mutex

	mu sync.Mutex
	// claim is the lock while this Dir has it, otherwise nil; guarded by mu
	claim *lockFile
	// watched holds the live processes by name; guarded by mu
	watched map[string]*Process
	// guard is the guard if it is our child and not reaped; guarded by mu
	guard *guardChild
}

// Open makes the directory (mode 0700) where there is none, and reads its id. It starts and claims nothing.
// A nil log is silent.
func Open(path string, log *zap.Logger) (*Dir, error) {
	if log == nil {
		log = zap.NewNop()
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	// One directory has one path, whichever way it was reached: the sockets' paths depend on it.
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	id, err := readOrMakeID(filepath.Join(path, "id"))
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	d := &Dir{path: path, id: id, log: log, watched: map[string]*Process{}}
	d.sockets = d.socketsPath()
	return d, nil
}

// readOrMakeID reads the directory's random id. It is not derived from the path: two containers may have the same path and see
// each other's processes.
func readOrMakeID(path string) (string, error) {
	for {
		data, err := os.ReadFile(path)
		if id := strings.TrimSpace(string(data)); err == nil && id != "" && !strings.ContainsAny(id, "/\x00") {
			return id, nil
		} else if err == nil {
			return "", fmt.Errorf("%s is damaged: stop what runs here and remove it", path)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		id := newToken()
		temporary := path + "." + id
		if err := os.WriteFile(temporary, []byte(id+"\n"), 0o600); err != nil {
			return "", err
		}
		err = os.Link(temporary, path) // whoever comes second reads the first one's
		_ = os.Remove(temporary)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
}

// socketsPath depends on nothing but the directory, so that an adopted process and a later gateway mean the same sockets.
func (d *Dir) socketsPath() string {
	if len(d.path)+1+longestSocketName <= longestSocketPath {
		return d.path
	}
	return filepath.Join("/tmp", "sluice-"+d.id)
}

// makePrivate makes a directory that nobody else may enter, and trusts one that exists only if it is just that.
func makePrivate(path string) error {
	err := os.Mkdir(path, 0o700)
	if err == nil || !errors.Is(err, fs.ErrExist) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return err
	}
	if st.Mode != unix.S_IFDIR|0o700 || int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s exists and is not a private directory of this user", path)
	}
	return nil
}

// Path is the directory's absolute path.
func (d *Dir) Path() string { return d.path }

// ID is the directory's random id, of letters and digits. No other directory has it, whatever its path.
func (d *Dir) ID() string { return d.id }

// Owns tells whether a process is of this directory: this process, one that it has started, a descendant of these, or the guard.
func (d *Dir) Owns(pid int) bool {
	if pid == os.Getpid() {
		return true
	}
	if id, _, ok := marker(pid); ok {
		return id == d.id
	}
	return pid == d.guardPID()
}

// Socket returns the path for a unix socket of that name (at most 31 bytes, no slash). It is the same in every life of the
// directory, and short enough for the kernel (107 bytes) even when the directory's own path is long: then the sockets are in
// a private directory under /tmp.
func (d *Dir) Socket(name string) string { return filepath.Join(d.sockets, name) }

// Start starts a process and records it. It needs the claim. The process gets its own session and process group, /dev/null
// as stdin, the log file as stdout and stderr, and no other file descriptor. What an earlier process of this name has left
// running is ended first; while that process itself is alive, Start fails with ErrRunning.
func (d *Dir) Start(s Spec) (*Process, error) {
	if s.Name == "" || strings.ContainsRune(s.Name, 0) {
		return nil, errors.New("a process needs a name")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.makeRoomLocked(s.Name); err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	p, err := d.startLocked(s)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	return p, nil
}

// makeRoomLocked sees to it that nothing of an earlier process of this name is left.
func (d *Dir) makeRoomLocked(name string) error {
	if d.claim == nil {
		return ErrNotClaimed
	}
	old, err := readRecord(d.recordPath(name))
	if err != nil {
		return nil // none, or one that names nothing
	}
	if old.identity().alive() {
		return ErrRunning
	}
	if err := endAll(context.Background(), []Record{old}, 0); err != nil {
		return err
	}
	d.removeRecord(old)
	return nil
}

// startLocked does it under the lock, so that a running process is always one that has a record.
func (d *Dir) startLocked(s Spec) (*Process, error) {
	r := Record{Name: s.Name, Purpose: s.Purpose, Command: s.Command, Meta: maps.Clone(s.Meta), LogFile: s.LogFile, Cgroup: s.Cgroup, Token: newToken()}
	if r.LogFile == "" {
		r.LogFile = filepath.Join("logs", fileName(s.Name)+".log")
	}
	if !filepath.IsAbs(r.LogFile) {
		r.LogFile = filepath.Join(d.path, r.LogFile)
	}
	logFile, end, err := d.openLog(r.LogFile)
	if err != nil {
		return nil, err
	}
	defer logFile.Close()
	marker := strings.Join([]string{d.id, r.Token, s.Name}, "/")
	child, err := spawn(command{args: s.Command, env: s.Env, workDir: s.WorkDir, marker: marker, cgroup: s.Cgroup}, logFile)
	if err != nil {
		return nil, err
	}
	r.LogStart, r.Started = end, time.Now()
	id, err := identify(child.Process.Pid) // it cannot be gone: even if it is dead, we have not reaped it
	r.PID, r.StartTime, r.BootID = child.Process.Pid, id.StartTime, id.BootID
	if err == nil {
		err = d.writeRecord(r)
	}
	if err != nil {
		err = errors.Join(err, endAll(context.Background(), []Record{r}, 0))
		_ = child.Wait()
		return nil, err
	}
	exit, ok := watchExit(r.identity())
	if !ok {
		return nil, errors.New("the process vanished")
	}
	p := &Process{record: r, child: child, exit: exit}
	d.watchLocked(p)
	return p, nil
}

func (d *Dir) watchLocked(p *Process) {
	p.dir, p.done, p.unwatched = d, make(chan struct{}), make(chan struct{})
	p.logStart.Store(p.record.LogStart)
	p.family = newFamily([]Record{p.record})
	if p.child == nil {
		// When an adopted process ends, somebody else reaps it and its number no longer tells whose session it was.
		// What we have seen in the session before does.
		p.family.members()
	}
	d.watched[p.record.Name] = p
	go p.watch()
}

// Adopt returns the recorded process of that name if it is alive: the same pid with the same start time. It needs the claim.
func (d *Dir) Adopt(name string) (*Process, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.claim == nil {
		return nil, false
	}
	if p, ok := d.watched[name]; ok {
		return p, true
	}
	r, err := readRecord(d.recordPath(name))
	if err != nil || r.Name != name || !r.identity().alive() {
		return nil, false
	}
	exit, ok := watchExit(r.identity())
	if !ok {
		return nil, false
	}
	p := &Process{record: r, exit: exit}
	d.watchLocked(p)
	return p, true
}

func (d *Dir) setMeta(p *Process, key, value string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.claim == nil {
		return ErrNotClaimed
	}
	if d.watched[p.record.Name] != p {
		return fmt.Errorf("%s has ended", p.record.Name)
	}
	r := p.record
	r.Meta = maps.Clone(r.Meta)
	if r.Meta == nil {
		r.Meta = map[string]string{}
	}
	r.Meta[key] = value
	if err := d.writeRecord(r); err != nil {
		return fmt.Errorf("record of %s: %w", r.Name, err)
	}
	p.record.Meta = r.Meta
	return nil
}

// Records lists the processes that are alive, by name. If this Dir has the claim, the records of dead ones are removed and
// what these have left running is ended.
func (d *Dir) Records() []Record {
	d.mu.Lock()
	defer d.mu.Unlock()
	live, dead := d.sortedRecords()
	if d.claim != nil {
		d.buryLocked(dead)
	}
	return live
}

func (d *Dir) sortedRecords() (live, dead []Record) {
	for _, r := range d.readRecords() {
		if r.identity().alive() {
			live = append(live, r)
		} else {
			dead = append(dead, r)
		}
	}
	return live, dead
}

// buryLocked ends what the dead have left running and removes their records. They have no time to finish anything: nobody serves
// through them any more.
func (d *Dir) buryLocked(dead []Record) {
	if err := endAll(context.Background(), dead, 0); err != nil {
		d.log.Error("what an ended process left behind cannot be ended", zap.Error(err))
		return
	}
	for _, r := range dead {
		if r.Name != "" {
			d.removeRecord(r)
		}
	}
}

// EndAll ends every process of the directory with all it has started, recorded or not, all at once, as Process.Stop does.
// It needs the claim.
func (d *Dir) EndAll(ctx context.Context, grace time.Duration) error {
	ended, err := d.endWatched(ctx, grace)
	if err != nil {
		return err
	}
	for _, p := range ended {
		<-p.unwatched
	}
	return nil
}

func (d *Dir) endWatched(ctx context.Context, grace time.Duration) ([]*Process, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.claim == nil {
		return nil, ErrNotClaimed
	}
	ended := slices.Collect(maps.Values(d.watched))
	for _, p := range ended {
		p.stopping.Store(true)
	}
	return ended, d.endEverything(ctx, grace)
}

// endEverything is for who has the claim: the gateway, or the guard.
func (d *Dir) endEverything(ctx context.Context, grace time.Duration) error {
	records := d.readRecords()
	if err := endAll(ctx, append(records, d.strays(records)...), grace); err != nil {
		return err
	}
	for _, r := range records {
		d.removeRecord(r)
	}
	return nil
}

// forget removes what the directory has of a process that has ended.
func (d *Dir) forget(p *Process) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.watched[p.record.Name] == p {
		delete(d.watched, p.record.Name)
	}
	if d.claim != nil {
		d.removeRecord(p.record)
	}
}
