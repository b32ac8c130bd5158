package process

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// killTimeout bounds the wait after SIGKILL. A process in an uninterruptible system call dies only
// when the call returns.
const killTimeout = 10 * time.Second

// listPause is the pause before the processes are listed again after that has failed.
const listPause = 50 * time.Millisecond

// processTree finds the processes of some records and all their descendants. It finds descendants
// by their session. It finds those that have left the session by the token in their environment.
// Since a program may overwrite its environment (to change its title), a process that was found
// once stays known.
type processTree struct {
	// recorded are the recorded processes.
	recorded []identity
	// leaders are the start times of those of this boot by pid. It is nil before the first members.
	leaders     map[int]uint64
	tokens      map[string]bool
	oldestStart uint64
	known       map[processKey]bool
}

// processKey identifies a process within this boot.
type processKey struct {
	pid   int
	start uint64
}

// newProcessTree returns the tree of records. A record without a pid, or of another boot, counts by
// its token alone.
func newProcessTree(records []Record) *processTree {
	t := &processTree{tokens: map[string]bool{}, known: map[processKey]bool{}}
	for i, r := range records {
		if i == 0 || r.StartTime < t.oldestStart {
			// A descendant is never older.
			t.oldestStart = r.StartTime
		}
		t.recorded = append(t.recorded, r.identity())
		t.tokens[r.Token] = true
	}
	return t
}

// findLeaders sets leaders.
func (t *processTree) findLeaders() error {
	boot, err := bootID()
	if err != nil {
		return err
	}
	t.leaders = map[int]uint64{}
	for _, id := range t.recorded {
		if id.PID > 0 && id.BootID == boot {
			t.leaders[id.PID] = id.StartTime
		}
	}
	return nil
}

// members lists the live processes of the tree. It returns an error if there may be others.
//
// The id of a session stays in use while any process is in the session. So the session of a leader
// belongs to the tree for certain in two cases. Either the leader exists, dead or alive, with the
// right start time. Or a process that was seen in the session before still exists.
func (t *processTree) members() ([]procStat, error) {
	if t.leaders == nil {
		if err := t.findLeaders(); err != nil {
			return nil, err
		}
	}
	all, err := listProcesses(t.oldestStart)
	if err != nil {
		return nil, err
	}
	sessions := map[int]bool{}
	for _, s := range all {
		if start, ok := t.leaders[s.pid]; ok && start == s.start {
			sessions[s.pid] = true
		}
		if _, ok := t.leaders[s.session]; ok && t.known[processKey{s.pid, s.start}] {
			sessions[s.session] = true
		}
	}
	var members []procStat
	for _, s := range all {
		if s.dead() || s.pid == os.Getpid() {
			continue
		}
		if !sessions[s.session] {
			if _, token, err := findMarker(s.pid); err != nil {
				return nil, err
			} else if token == "" || !t.tokens[token] {
				continue
			}
		}
		t.known[processKey{s.pid, s.start}] = true
		members = append(members, s)
	}
	return members, nil
}

// awaitMembers is members, and tries again until ctx ends.
func (t *processTree) awaitMembers(ctx context.Context) ([]procStat, error) {
	for {
		members, err := t.members()
		if err == nil || sleep(ctx, listPause) != nil {
			return members, err
		}
	}
}

// signal sends a signal to the members. It signals whole process groups, so that a process that is
// being forked at this moment gets the signal too. It does so only for groups that a leader or a
// member created; in other groups it signals the members alone.
func (t *processTree) signal(members []procStat, sig unix.Signal) {
	owned := map[int]bool{}
	for pid := range t.leaders {
		owned[pid] = true
	}
	for _, s := range members {
		owned[s.pid] = true
	}
	done := map[int]bool{}
	for _, s := range members {
		target := s.pid
		if owned[s.group] {
			target = -s.group
		}
		if !done[target] {
			done[target] = true
			// Kill fails only if the process is gone, which is intended, or now belongs to another
			// user.
			_ = unix.Kill(target, sig)
		}
	}
}

// endProcessTrees ends the processes of the records and all their descendants: SIGTERM, and SIGKILL
// after grace or when ctx ends. It returns an error if some may be left.
func endProcessTrees(ctx context.Context, records []Record, grace time.Duration) error {
	if len(records) == 0 {
		return nil
	}
	t := newProcessTree(records)
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	members, err := t.awaitMembers(ctx)
	if err != nil {
		return fmt.Errorf("list the processes to end: %w", err)
	}
	t.signal(members, unix.SIGTERM)
	// A stopped process gets its SIGTERM when it continues.
	t.signal(members, unix.SIGCONT)
	members = t.waitForEnd(ctx, members, 0)
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	if members = t.waitForEnd(ctx, members, unix.SIGKILL); len(members) > 0 {
		return fmt.Errorf("process %d of session %d is still there after SIGKILL", members[0].pid, members[0].session)
	}
	return nil
}

// waitForEnd returns nil when no members are left, or the members that are left when ctx ends. If
// sig is not 0, waitForEnd sends it before each check, because members may be forking. Members that
// cannot be listed are left.
func (t *processTree) waitForEnd(ctx context.Context, members []procStat, sig unix.Signal) []procStat {
	pause := 2 * time.Millisecond
	for len(members) > 0 && ctx.Err() == nil {
		if sig != 0 {
			t.signal(members, sig)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, 50*time.Millisecond)
		if left, err := t.members(); err == nil {
			members = left
		}
	}
	return members
}
