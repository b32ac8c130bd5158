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

// processTree finds the processes of some records and all their descendants. It finds descendants
// by their session. It finds those that have left the session by the token in their environment.
// Since a program may overwrite its environment (to change its title), a process that was found
// once stays known.
type processTree struct {
	// leaders are the start times of the recorded processes by pid.
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
	t := &processTree{leaders: map[int]uint64{}, tokens: map[string]bool{}, known: map[processKey]bool{}}
	boot := bootID()
	for i, r := range records {
		if i == 0 || r.StartTime < t.oldestStart {
			// A descendant is never older.
			t.oldestStart = r.StartTime
		}
		if r.PID > 0 && r.BootID == boot {
			t.leaders[r.PID] = r.StartTime
		}
		t.tokens[r.Token] = true
	}
	return t
}

// members lists the live processes of the tree.
//
// The id of a session stays in use while any process is in the session. So the session of a leader
// belongs to the tree for certain in two cases: the leader exists, dead or alive, with the right
// start time; or a process that was seen in the session before still exists.
func (t *processTree) members() []procStat {
	all := listProcesses(t.oldestStart)
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
		if s.dead() || s.pid == os.Getpid() || !(sessions[s.session] || t.carriesToken(s.pid)) {
			continue
		}
		t.known[processKey{s.pid, s.start}] = true
		members = append(members, s)
	}
	return members
}

// carriesToken reports whether the environment of a process has one of the tokens.
func (t *processTree) carriesToken(pid int) bool {
	_, token, ok := readMarker(pid)
	return ok && t.tokens[token]
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
// after grace or when ctx ends.
func endProcessTrees(ctx context.Context, records []Record, grace time.Duration) error {
	if len(records) == 0 {
		return nil
	}
	t := newProcessTree(records)
	members := t.members()
	t.signal(members, unix.SIGTERM)
	// A stopped process gets its SIGTERM when it continues.
	t.signal(members, unix.SIGCONT)
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	members = t.waitForEnd(ctx, members, 0)
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	if members = t.waitForEnd(ctx, members, unix.SIGKILL); len(members) > 0 {
		return fmt.Errorf("process %d of session %d is still there after SIGKILL", members[0].pid, members[0].session)
	}
	return nil
}

// waitForEnd returns nil when no members are left, or the members that are left when ctx ends. If
// sig is not 0, waitForEnd sends it before each check, because members may be forking.
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
		members = t.members()
	}
	return members
}
