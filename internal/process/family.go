package process

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// killPatience is how long SIGKILL may take: a process in an uninterruptible system call dies only when that ends.
const killPatience = 10 * time.Second

// family follows what belongs to some records: their processes and all that these have started. Descendants are found by
// their session, and those that left it by the token in their environment. A program may overwrite its environment (to
// change its title), so what was seen once stays known.
type family struct {
	leaders map[int]uint64 // start time by pid
	tokens  map[string]bool
	since   uint64
	known   map[seen]bool
}

// seen is an identity within this boot.
type seen struct {
	pid   int
	start uint64
}

// newFamily takes records of this boot. A record without a pid counts by its token alone.
func newFamily(records []Record) *family {
	f := &family{leaders: map[int]uint64{}, tokens: map[string]bool{}, known: map[seen]bool{}}
	boot := bootID()
	for i, r := range records {
		if i == 0 || r.StartTime < f.since {
			f.since = r.StartTime // descendants are never older
		}
		if r.PID > 0 && r.BootID == boot {
			f.leaders[r.PID] = r.StartTime
		}
		f.tokens[r.Token] = true
	}
	return f
}

// members lists what is alive of the family.
//
// A session's number stays taken while any process is in the session. So a leader's session is the family's for sure when
// the leader is there, dead or alive, with the right start time, or when a process that was seen in it before still is.
func (f *family) members() []stat {
	all := processes(f.since)
	sessions := map[int]bool{}
	for _, s := range all {
		if start, ok := f.leaders[s.pid]; ok && start == s.start {
			sessions[s.pid] = true
		}
		if _, ok := f.leaders[s.session]; ok && f.known[seen{s.pid, s.start}] {
			sessions[s.session] = true
		}
	}
	var members []stat
	for _, s := range all {
		if s.dead() || s.pid == os.Getpid() || !(sessions[s.session] || f.carriesToken(s.pid)) {
			continue
		}
		f.known[seen{s.pid, s.start}] = true
		members = append(members, s)
	}
	return members
}

func (f *family) carriesToken(pid int) bool {
	_, token, ok := marker(pid)
	return ok && f.tokens[token]
}

// signal reaches the members by group, so that a fork in this very moment does not slip through. A group is the family's
// own when a leader or a member made it; of any other group only the members are meant.
func (f *family) signal(members []stat, sig unix.Signal) {
	own := map[int]bool{}
	for pid := range f.leaders {
		own[pid] = true
	}
	for _, s := range members {
		own[s.pid] = true
	}
	done := map[int]bool{}
	for _, s := range members {
		target := s.pid
		if own[s.group] {
			target = -s.group
		}
		if !done[target] {
			done[target] = true
			// The only failures are that it is gone, which is what we want, and that it has become another user's.
			_ = unix.Kill(target, sig)
		}
	}
}

// endAll ends the records' processes with all they have started: SIGTERM, after grace or ctx SIGKILL.
func endAll(ctx context.Context, records []Record, grace time.Duration) error {
	if len(records) == 0 {
		return nil
	}
	f := newFamily(records)
	members := f.members()
	f.signal(members, unix.SIGTERM)
	f.signal(members, unix.SIGCONT) // a stopped process gets its SIGTERM when it goes on
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	members = f.await(ctx, members, 0)
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), killPatience)
	defer cancel()
	if members = f.await(ctx, members, unix.SIGKILL); len(members) > 0 {
		return fmt.Errorf("process %d of session %d is still there after SIGKILL", members[0].pid, members[0].session)
	}
	return nil
}

// await returns when no members are left, or with those that are left when ctx ends. A signal other than 0 is sent at every
// look, because members may be forking.
func (f *family) await(ctx context.Context, members []stat, sig unix.Signal) []stat {
	pause := 2 * time.Millisecond
	for len(members) > 0 && ctx.Err() == nil {
		if sig != 0 {
			f.signal(members, sig)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, 50*time.Millisecond)
		members = f.members()
	}
	return members
}
