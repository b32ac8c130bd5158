package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

const (
	// claimTimeout is how long Claim waits for the guard, which may need five seconds of grace and
	// ten seconds for SIGKILL.
	claimTimeout = 20 * time.Second
	// claimPollInterval is the time between two attempts to claim.
	claimPollInterval = 20 * time.Millisecond
	// liveHolderTimeout is how long another gateway must hold the claim for Claim to give up. A
	// gateway that was just killed holds its claim for some time while it dies.
	liveHolderTimeout = 500 * time.Millisecond
)

// ClaimedError says which process has claimed the directory.
type ClaimedError struct {
	// Dir is the state directory.
	Dir string
	// PID is the process id of the holder. It is 0 if the holder is not visible, as in another
	// container.
	PID int
}

// Error implements error.
func (e *ClaimedError) Error() string {
	holder := "process " + strconv.Itoa(e.PID)
	if e.PID == 0 {
		holder = "a process that is not visible from here"
	}
	return fmt.Sprintf("the state directory %s is in use by %s: stop that gateway, or give this one a state_dir of its own", e.Dir, holder)
}

// claimPath is the path of the lock file.
func (d *Dir) claimPath() string { return filepath.Join(d.path, "claim.lock") }

// Claim claims the directory for this process. The kernel releases the claim when this process
// dies. Claim then ends processes that a crash left running without a record, and what dead
// processes left running.
//
// Claim fails with *ClaimedError after half a second if a live gateway has the claim. It waits for
// up to 20 s while the guard has the claim to end abandoned processes. Claiming again does nothing.
//
// A directory that is full can be claimed. A directory on a read-only file system cannot, because
// no gateway could open its sockets there.
func (d *Dir) Claim(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	started := time.Now()
	for {
		other, err := d.tryClaim()
		if !errors.Is(err, errLocked) {
			return err
		}
		claimed := &ClaimedError{Dir: d.path, PID: other.PID}
		if other.Role == roleGateway && time.Since(started) > liveHolderTimeout {
			return claimed
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", claimed, ctx.Err())
		case <-time.After(claimPollInterval):
		}
	}
}

// tryClaim makes one attempt. It fails with errLocked if another process has the claim, and returns
// that process if it is visible.
func (d *Dir) tryClaim() (lockHolder, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.claim != nil {
		return lockHolder{}, nil
	}
	if d.sockets != d.path {
		if err := makePrivate(d.sockets); err != nil {
			return lockHolder{}, fmt.Errorf("directory for sockets: %w", err)
		}
	}
	lock, err := openLock(d.claimPath())
	if err != nil {
		return lockHolder{}, err
	}
	if err := lock.acquire(roleGateway); err != nil {
		defer lock.close()
		return lock.readHolder(), err
	}
	d.claim = lock
	d.repairRecords()
	d.endUnrecordedLocked()
	return lockHolder{}, nil
}

// endUnrecordedLocked ends the processes of the directory that no live record names. d.mu is held.
func (d *Dir) endUnrecordedLocked() {
	live, dead := d.liveAndDeadRecords()
	strays, err := d.unrecordedProcesses(append(live, dead...))
	if err != nil {
		d.log.Error("processes without a record not found", errorField(err))
	}
	if len(strays) > 0 {
		d.log.Warn("processes without a record found, ending them", countField(len(strays)))
	}
	d.endDeadLocked(append(dead, strays...))
}

func (d *Dir) claimed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.claim != nil
}

// Release releases the claim. The processes continue to run and are no longer watched. Releasing an
// unclaimed directory does nothing.
func (d *Dir) Release() {
	d.mu.Lock()
	claim, watched := d.claim, d.watched
	d.claim, d.watched = nil, map[string]*Process{}
	d.mu.Unlock()
	for _, p := range watched {
		p.exit.close()
		<-p.unwatched
	}
	if d.sockets != d.path && claim != nil {
		// Remove fails if the directory has sockets in use.
		_ = os.Remove(d.sockets)
	}
	if claim != nil {
		claim.release()
		claim.close()
	}
}
