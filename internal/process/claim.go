package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"
)

const (
	// claimPatience is how long Claim waits for the guard, which may need five seconds of grace and ten for SIGKILL.
	claimPatience = 20 * time.Second
	claimRetry    = 20 * time.Millisecond
	// claimSure is how long a gateway must be seen to have the claim: one that was just killed still takes some time to die.
	claimSure = 500 * time.Millisecond
)

// ClaimedError says who has the claim.
type ClaimedError struct {
	// Dir is the state directory.
	Dir string
	// PID is the holder's process id, 0 if it is not known (a process that we cannot see, as in another container).
	PID int
}

func (e *ClaimedError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("the state directory %s is in use by a process that is not visible from here", e.Dir)
	}
	return fmt.Sprintf("the state directory %s is in use by process %d", e.Dir, e.PID)
}

func (d *Dir) claimPath() string { return filepath.Join(d.path, "claim.lock") }

// Claim takes the exclusive hold on the directory; the kernel gives it back when this process dies. Then it ends what
// a crash left running without a record, and what dead processes left. It fails with *ClaimedError after half a second when a live
// gateway has the claim; it waits, up to 20 s, while the guard has it to end abandoned processes. Claiming again does nothing.
func (d *Dir) Claim(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, claimPatience)
	defer cancel()
	begin := time.Now()
	for {
		by, err := d.tryClaim()
		if !errors.Is(err, errLocked) {
			return err
		}
		taken := &ClaimedError{Dir: d.path, PID: by.PID}
		if by.Role == roleGateway && time.Since(begin) > claimSure {
			return taken
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", taken, ctx.Err())
		case <-time.After(claimRetry):
		}
	}
}

// tryClaim fails with errLocked when somebody else has the claim, and says who, as far as that is to be seen.
func (d *Dir) tryClaim() (holder, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.claim != nil {
		return holder{}, nil
	}
	if d.sockets != d.path {
		if err := makePrivate(d.sockets); err != nil {
			return holder{}, fmt.Errorf("directory for sockets: %w", err)
		}
	}
	lock, err := openLock(d.claimPath())
	if err != nil {
		return holder{}, err
	}
	if err := lock.take(roleGateway); err != nil {
		defer lock.close()
		return lock.holder(), err
	}
	d.claim = lock
	d.endStraysLocked()
	return holder{}, nil
}

// endStraysLocked ends what no live record names.
func (d *Dir) endStraysLocked() {
	live, dead := d.sortedRecords()
	strays := d.strays(append(live, dead...))
	if len(strays) > 0 {
		d.log.Warn("ending processes that an earlier run started and did not record", zap.Int("count", len(strays)))
	}
	d.buryLocked(append(dead, strays...))
}

func (d *Dir) claimed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.claim != nil
}

// Release gives the claim back. The processes go on running but are not watched any more. Releasing what is not claimed
// does nothing.
func (d *Dir) Release() error {
	d.mu.Lock()
	claim, watched := d.claim, d.watched
	d.claim, d.watched = nil, map[string]*Process{}
	d.mu.Unlock()
	for _, p := range watched {
		p.exit.close()
		<-p.unwatched
	}
	if d.sockets != d.path && claim != nil {
		_ = os.Remove(d.sockets) // unless there are sockets in use
	}
	if claim != nil {
		claim.free()
		claim.close()
	}
	return nil
}
