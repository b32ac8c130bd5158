package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/sluice-gateway/sluice/internal/lack"
)

const (
	// maxSocketName is the longest name of a socket in bytes.
	maxSocketName = 31
	// maxIDBytes bounds the id of a directory. newToken returns 26 bytes.
	maxIDBytes = 64
	// maxSocketPath is the longest path in a sockaddr_un, without the final zero (unix(7)).
	maxSocketPath = 107
)

// Dir is a state directory and the processes that belong to it. Its methods are safe for concurrent
// use.
type Dir struct {
	// path is absolute and free of symbolic links. id is random. sockets is the directory of the
	// unix sockets.
	path    string
	id      string
	sockets string
	log     levels
	// rotateMu is held while a log is rotated. Lock order: mu before rotateMu.
	rotateMu sync.Mutex

	mu sync.Mutex
	// claim is the lock of the directory while this Dir has claimed it, otherwise nil. Guarded by
	// mu.
	claim *lockFile
	// watched holds the live processes by name. Guarded by mu.
	watched map[string]*Process
	// guard is the guard if it is a child of this process that has not been reaped. Guarded by mu.
	guard *guardChild
	// own holds the processes that AddOwn was called with. Guarded by mu.
	own []identity
}

// Open creates the directory (mode 0700) if it does not exist, and reads its id. It starts and
// claims nothing. It refuses a directory that another user owns or may change. A nil log discards
// messages.
func Open(path string, log Logger) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", makeFault(path, err))
	}
	// All paths to the directory must give the same sockets, so symbolic links are resolved.
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	d := &Dir{path: path, log: levels{log}, watched: map[string]*Process{}}
	for _, folder := range []string{path, d.recordsPath()} {
		if err := CheckPrivate(folder); err != nil && !(folder != path && errors.Is(err, fs.ErrNotExist)) {
			return nil, fmt.Errorf("state directory: %w", err)
		}
	}
	if d.id, err = d.findID(); err != nil {
		return nil, fmt.Errorf("state directory: %w", writeFault(path, err))
	}
	d.sockets = d.socketsPath()
	return d, nil
}

// findID returns the id of the directory. The id in the file may be damaged. The processes of the
// directory carry it too, so theirs counts.
func (d *Dir) findID() (string, error) {
	path := filepath.Join(d.path, "id")
	id, err := readID(path)
	if err != nil && !errors.Is(err, errBadID) && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	carried := d.carriedID()
	switch {
	case err == nil && (carried == "" || carried == id):
		return id, nil
	case carried == "":
		return makeID(path, errors.Is(err, errBadID))
	}
	d.log.Warn("damaged id of the state directory replaced by the one that its processes carry", textField("file", path))
	if err := writeFile(path, []byte(carried+"\n")); err != nil {
		d.log.Warn("writing the id of the state directory failed", errorField(writeFault(d.path, err)))
	}
	return carried, nil
}

// errBadID means that the file of the id has no valid content.
var errBadID = errors.New("not a valid id")

// readID reads the id from its file.
func readID(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(data))
	isOther := func(r rune) bool { return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) }
	if id == "" || len(id) > maxIDBytes || strings.ContainsFunc(id, isOther) {
		return "", errBadID
	}
	return id, nil
}

// carriedID returns the id that a recorded live process carries, or "" if none does.
func (d *Dir) carriedID() string {
	for _, r := range d.readRecords("") {
		if id, token, ok := readMarker(r.PID); ok && token == r.Token && r.identity().alive() {
			return id
		}
	}
	return ""
}

// makeID makes an id and its file. replace means that a damaged file is replaced. The id is not
// derived from the path, because two containers may have the same path and see each other's
// processes.
func makeID(path string, replace bool) (string, error) {
	id := newToken()
	if replace {
		return id, writeFile(path, []byte(id+"\n"))
	}
	temporary := path + "." + id
	err := os.WriteFile(temporary, []byte(id+"\n"), 0o600)
	if err == nil {
		err = os.Link(temporary, path)
	}
	_ = os.Remove(temporary)
	if errors.Is(err, fs.ErrExist) {
		return readID(path) // another process was faster
	}
	return id, err
}

// socketsPath depends only on the directory, so that an adopted process and a later gateway use the
// same sockets.
func (d *Dir) socketsPath() string {
	if len(d.path)+1+maxSocketName <= maxSocketPath {
		return d.path
	}
	return filepath.Join("/tmp", "sluice-"+d.id)
}

// makePrivate makes a directory that only this user may enter. It accepts an existing directory
// only if that is already the case.
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

// Path is the absolute path of the directory.
func (d *Dir) Path() string { return d.path }

// WriteFile replaces a file of the directory in one step: after a crash the file has the old or the
// new content.
func (d *Dir) WriteFile(name string, data []byte) error {
	return writeFile(filepath.Join(d.path, name), data)
}

// ID is the random id of the directory, of letters and digits. It is unique even among directories
// with the same path.
func (d *Dir) ID() string { return d.id }

// AddOwn says that a process belongs to this directory, such as one that this process replaces. It
// has no effect once the process has ended.
func (d *Dir) AddOwn(pid int) {
	if id, err := identify(pid); err == nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.own = append(d.own, id)
	}
}

// hasOwn reports whether AddOwn was called with a process.
func (d *Dir) hasOwn(pid int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.ContainsFunc(d.own, func(id identity) bool { return id.PID == pid && id.alive() })
}

// Owns reports whether a process belongs to this directory. Such a process is this one, a child of
// it, one that Start started, a descendant of one, the guard, or one of AddOwn.
func (d *Dir) Owns(pid int) bool {
	if pid == os.Getpid() {
		return true
	}
	if id, _, ok := readMarker(pid); ok {
		return id == d.id
	}
	s, ok := readStat(pid)
	return ok && s.parent == os.Getpid() || d.hasOwn(pid) || pid == guardPID(d.path)
}

// Socket returns the path for a unix socket of that name (at most 31 bytes, no slash). The path is
// the same for every gateway of the directory. It has at most 107 bytes, the kernel's limit: if the
// path of the directory is long, the sockets are in a private directory under /tmp.
func (d *Dir) Socket(name string) string { return filepath.Join(d.sockets, name) }

// Start starts a process and records it. The directory must be claimed. The process gets a session
// and process group of its own, /dev/null as stdin, the log file as stdout and stderr, and no other
// file descriptor.
//
// Before that, Start ends whatever an earlier process of this name has left running. If the earlier
// process itself is alive, Start fails with ErrRunning.
func (d *Dir) Start(s Spec) (*Process, error) {
	if s.Name == "" || strings.ContainsRune(s.Name, 0) {
		return nil, errors.New("the name of a process is empty or contains a zero byte")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.endPreviousLocked(s.Name); err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	p, err := d.startLocked(s)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	return p, nil
}

// endPreviousLocked ends everything that an earlier process of this name has left running. d.mu is
// held.
func (d *Dir) endPreviousLocked(name string) error {
	if d.claim == nil {
		return ErrNotClaimed
	}
	old, err := readRecord(d.recordPath(name))
	switch {
	case lack.IsOwn(err):
		return err // the process that the record names may run
	case err != nil:
		// There is no record, or the record is unreadable and names no process.
		return nil
	case old.identity().alive():
		return ErrRunning
	}
	if err := endProcessTrees(context.Background(), []Record{old}, 0); err != nil {
		return err
	}
	d.removeRecord(old)
	return nil
}

// startLocked starts a process and writes its record with d.mu held, so that other methods never
// see a running process without a record.
func (d *Dir) startLocked(s Spec) (*Process, error) {
	r := Record{Name: s.Name, Purpose: s.Purpose, Command: s.Command, Meta: maps.Clone(s.Meta), LogFile: d.LogFile(s.Name), Cgroup: s.Cgroup, Token: newToken()}
	logFile, end, err := d.openLog(r.LogFile)
	if err != nil {
		return nil, err
	}
	defer logFile.Close()
	marker := strings.Join([]string{d.id, r.Token, s.Name}, "/")
	child, err := spawn(spawnSpec{args: s.Command, env: s.Env, workDir: s.WorkDir, marker: marker, cgroup: s.Cgroup}, logFile)
	if err != nil {
		return nil, err
	}
	r.LogStart, r.Started = end, time.Now()
	// The process cannot be gone: even if it is dead, it has not been reaped.
	id, err := identify(child.Process.Pid)
	r.PID, r.StartTime, r.BootID = child.Process.Pid, id.StartTime, id.BootID
	if err == nil {
		err = d.writeRecord(r)
	}
	exit, ok := (*exitWatch)(nil), false
	if err == nil {
		if exit, ok = newExitWatch(r.identity()); !ok {
			err = errors.New("the process ended before it could be watched")
		}
	}
	if err != nil {
		return nil, errors.Join(err, d.abortLocked(r, child))
	}
	p := &Process{record: r, child: child, exit: exit}
	p.redactor.Store(s.Redactor)
	d.watchLocked(p)
	return p, nil
}

// abortLocked ends a process that was started and is not watched, and all its descendants. The next
// start of the name ends those that it could not end, or else the next claim does. d.mu is held.
func (d *Dir) abortLocked(r Record, child *exec.Cmd) error {
	err := endProcessTrees(context.Background(), []Record{r}, 0)
	_ = child.Process.Kill() // it may not be among those that were ended
	_ = child.Wait()
	if err == nil {
		d.removeRecord(r)
	}
	return err
}

// watchLocked adds p to the watched processes and starts the goroutine that waits for its end.
func (d *Dir) watchLocked(p *Process) {
	p.dir, p.done, p.unwatched = d, make(chan struct{}), make(chan struct{})
	p.logStart.Store(p.record.LogStart)
	p.tree = newProcessTree([]Record{p.record})
	if p.child == nil {
		// When an adopted process ends, another process reaps it. Then its pid no longer tells
		// whose session it was, but the members of the session that were seen before do.
		_, _ = p.tree.members() // those that carry the token are found later too
	}
	d.watched[p.record.Name] = p
	go p.watch()
}

// Adopt returns the recorded process of that name if it is alive, that is, if its pid still has the
// recorded start time. The directory must be claimed.
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
	exit, ok := newExitWatch(r.identity())
	if !ok {
		return nil, false
	}
	p := &Process{record: r, exit: exit}
	d.watchLocked(p)
	return p, true
}

// setMeta implements Process.SetMeta.
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

// rename implements Process.Rename. After a crash in between there are two records of the process.
func (d *Dir) rename(p *Process, name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.claim == nil {
		return ErrNotClaimed
	}
	if d.watched[p.record.Name] != p {
		return fmt.Errorf("%s has ended", p.record.Name)
	}
	if _, taken := d.watched[name]; taken {
		return ErrRunning
	}
	before, after := p.record, p.record
	after.Name = name // the rest is read without d.mu
	if err := d.writeRecord(after); err != nil {
		return fmt.Errorf("record of %s: %w", name, err)
	}
	delete(d.watched, before.Name)
	d.watched[name] = p
	p.record.Name = name
	d.removeRecord(before)
	return nil
}

// Find lists the live processes whose names begin with a prefix, by name. It only reads, and only
// the records of those.
func (d *Dir) Find(prefix string) []Record {
	var live []Record
	for _, r := range d.readRecords(fileName(prefix)) {
		if strings.HasPrefix(r.Name, prefix) && r.identity().alive() {
			live = append(live, r)
		}
	}
	return live
}

// Records lists the live processes, by name. If this Dir has claimed the directory, Records also
// ends what dead processes have left running and removes their records.
func (d *Dir) Records() []Record {
	d.mu.Lock()
	defer d.mu.Unlock()
	live, dead := d.liveAndDeadRecords()
	if d.claim != nil {
		d.endDeadLocked(dead)
	}
	return live
}

// liveAndDeadRecords reads all records and divides them by whether their process is alive.
func (d *Dir) liveAndDeadRecords() (live, dead []Record) {
	for _, r := range d.readRecords("") {
		if r.identity().alive() {
			live = append(live, r)
		} else {
			dead = append(dead, r)
		}
	}
	return live, dead
}

// endDeadLocked ends what dead processes have left running and removes their records. It sends
// SIGKILL at once, because without its main process a server serves nobody. d.mu is held.
func (d *Dir) endDeadLocked(dead []Record) {
	if err := endProcessTrees(context.Background(), dead, 0); err != nil {
		d.log.Error("descendants of ended processes not ended", errorField(err))
		return
	}
	for _, r := range dead {
		if r.Name != "" {
			d.removeRecord(r)
		}
	}
}

// EndAll ends all processes of the directory and all their descendants, recorded or not, in the way
// of Process.Stop. The directory must be claimed.
func (d *Dir) EndAll(ctx context.Context, grace time.Duration) error {
	ended, err := d.stopWatched(ctx, grace)
	if err != nil {
		return err
	}
	for _, p := range ended {
		<-p.unwatched
	}
	return nil
}

// stopWatched ends all processes and returns those that were watched.
func (d *Dir) stopWatched(ctx context.Context, grace time.Duration) ([]*Process, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.claim == nil {
		return nil, ErrNotClaimed
	}
	ended := slices.Collect(maps.Values(d.watched))
	for _, p := range ended {
		p.stopping.Store(true)
	}
	return ended, d.endAllProcesses(ctx, grace)
}

// endAllProcesses ends all processes of the directory. The caller has the claim: the gateway or the
// guard.
func (d *Dir) endAllProcesses(ctx context.Context, grace time.Duration) error {
	records := d.readRecords("")
	strays, err := d.unrecordedProcesses(records)
	if err != nil {
		return err
	}
	if err := endProcessTrees(ctx, append(records, strays...), grace); err != nil {
		return err
	}
	for _, r := range records {
		d.removeRecord(r)
	}
	return nil
}

// KillAll is EndAll with SIGKILL at once. It reads and writes no file of the directory and takes no
// lock, so the records stay.
func (d *Dir) KillAll() error {
	all, err := d.unrecordedProcesses(nil)
	return errors.Join(err, endProcessTrees(context.Background(), all, 0))
}

// unwatch forgets a process that has ended. Its record goes if all its descendants have ended too;
// otherwise the next start of the name ends them.
func (d *Dir) unwatch(p *Process, ended bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.watched[p.record.Name] == p {
		delete(d.watched, p.record.Name)
	}
	if d.claim != nil && ended {
		d.removeRecord(p.record)
	}
}
