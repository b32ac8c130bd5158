package weights

import (
	"context"
	"crypto/sha1" //nolint:gosec // git names the content of small files by it
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// bufferBytes is the size of the buffer of one download.
	bufferBytes = 256 << 10
	// maxFailures is how many requests in a row may bring nothing before a fetch fails.
	maxFailures = 5
	// maxPause is the longest pause between two requests, unless the hub asks for a longer one.
	maxPause = 30 * time.Second
)

// errChecksum says that the content of a file is not what the hub has promised.
var errChecksum = errors.New("the content does not have the hub's checksum")

// download fetches one file into the cache.
type download struct {
	fetcher *Fetcher
	hub     *client
	cache   *cache
	file    File
	commit  string
	count   *counter
	working *atomic.Int32
}

// run fetches the file, unless the blob is there. Another fetch of the same blob is waited for.
func (d *download) run(ctx context.Context) error {
	blob, partial := d.cache.blob(d.file.Hash), d.cache.partial(d.file.Hash)
	if isComplete(blob, d.file.Size) {
		d.count.found(d.file.Size)
		return nil
	}
	unlock, err := lock(ctx, d.cache.lockPath(d.file.Hash), func() {
		if info, err := os.Stat(partial); err == nil {
			d.count.see(min(info.Size(), d.file.Size))
		}
	})
	if err != nil {
		return err
	}
	defer unlock()
	d.working.Add(1)
	defer d.working.Add(-1)
	if isComplete(blob, d.file.Size) { // by the fetch that held the lock
		d.count.found(d.file.Size)
		return nil
	}
	err = d.fetch(ctx, partial)
	if errors.Is(err, errChecksum) { // maybe only what an earlier process left is wrong
		err = d.fetch(ctx, partial)
	}
	if err != nil {
		return diskFull(err, d.cache.dir)
	}
	return os.Rename(partial, blob)
}

// makeRoom says what to do about a full disk.
const makeRoom = "free space, or set cache_dir of the registry to another disk; on Kubernetes enlarge the volume of its cache"

// diskFull says where the space is missing if that is the error.
func diskFull(err error, dir string) error {
	if isDiskFull(err) {
		return fmt.Errorf("no room left in %s; %s: %w", dir, makeRoom, err)
	}
	return err
}

// isDiskFull reports whether the disk or a quota of it has no room left.
func isDiskFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// newHash returns the hash by which the hub names the content.
func (d *download) newHash() hash.Hash {
	if len(d.file.Hash) == sha256.Size*2 {
		return sha256.New()
	}
	h := sha1.New() //nolint:gosec // as above
	fmt.Fprintf(h, "blob %d\x00", d.file.Size)
	return h
}

// target is the file that a download writes, with the hash of what it holds.
type target struct {
	*os.File
	hash hash.Hash
	size int64
}

// open opens the partial file and hashes what it holds already.
func (d *download) open(ctx context.Context, path string) (*target, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	t := &target{File: f, hash: d.newHash()}
	before := &earlier{ctx: ctx, file: f, count: d.count}
	t.size, err = io.CopyBuffer(t.hash, io.LimitReader(before, d.file.Size+1), make([]byte, bufferBytes))
	if err == nil && t.size > d.file.Size {
		err = d.restart(t)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	d.count.found(t.size)
	return t, nil
}

// earlier is what an earlier fetch has left. Hundreds of gigabytes take minutes to read, so the
// reading ends with the context, and what was read is counted at once.
type earlier struct {
	ctx   context.Context
	file  *os.File
	count *counter
	read  int64
}

func (e *earlier) Read(b []byte) (int, error) {
	if err := e.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := e.file.Read(b)
	e.read += int64(n)
	e.count.found(e.read)
	return n, err
}

// restart empties the partial file.
func (d *download) restart(t *target) error {
	t.hash, t.size = d.newHash(), 0
	d.count.found(0)
	_, err := t.Seek(0, io.SeekStart)
	return errors.Join(err, t.Truncate(0))
}

// fetch fills the partial file and checks it. A transfer that breaks off is resumed. If the content
// is wrong, fetch removes it and returns errChecksum.
func (d *download) fetch(ctx context.Context, partial string) error {
	t, err := d.open(ctx, partial)
	if err != nil {
		return err
	}
	defer t.Close() //nolint:errcheck // Sync has told what Close could tell
	if err := d.fill(ctx, t); err != nil {
		return err
	}
	if sum := hex.EncodeToString(t.hash.Sum(nil)); sum != d.file.Hash {
		d.count.found(0)
		return errors.Join(fmt.Errorf("%w: %s instead of %s", errChecksum, sum, d.file.Hash), os.Remove(partial))
	}
	return t.Sync()
}

// fill requests the rest of the file until it is complete. It gives up after maxFailures requests
// in a row that brought nothing.
func (d *download) fill(ctx context.Context, t *target) error {
	for failures := 0; t.size < d.file.Size; {
		before := t.size
		err := d.request(ctx, t)
		if t.size > before {
			failures = 0
		}
		if err == nil {
			continue
		}
		if failures++; failures > maxFailures || !mayRecover(ctx, err) {
			return err
		}
		if err := sleep(ctx, d.fetcher.pauseAfter(failures, err)); err != nil {
			return err
		}
	}
	return nil
}

// request requests what is missing and writes what comes.
func (d *download) request(ctx context.Context, t *target) error {
	ctx, stalled, stop := untilStalled(ctx, d.fetcher.stall())
	defer stop()
	header := http.Header{}
	if t.size > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-", t.size))
	}
	response, err := d.hub.get(ctx, http.MethodGet, d.hub.address(d.cache.repository, d.commit, d.file.Path), header)
	if err != nil {
		return d.refused(ctx, t, err)
	}
	defer response.Body.Close()
	if t.size > 0 && !continues(response, t.size) { // the server sends the whole file
		if err := d.restart(t); err != nil {
			return &diskError{err}
		}
	}
	return d.copy(ctx, t, response.Body, stalled)
}

// untilStalled returns a context that ends when the timer has not been reset for so long. stop ends
// both.
func untilStalled(ctx context.Context, stall time.Duration) (_ context.Context, timer *time.Timer, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer = time.AfterFunc(stall, func() { cancel(fmt.Errorf("nothing has come for %v", stall)) })
	return ctx, timer, func() { timer.Stop(); cancel(nil) }
}

// refused handles a request without an answer to read. A server that does not have the rest is
// asked for the whole.
func (d *download) refused(ctx context.Context, t *target, err error) error {
	var status *statusError
	if errors.As(err, &status) && status.status == http.StatusRequestedRangeNotSatisfiable {
		return errors.Join(err, d.restart(t))
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// continues reports whether the answer begins at the offset.
func continues(r *http.Response, offset int64) bool {
	begin, _, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Content-Range"), "bytes "), "-")
	at, err := strconv.ParseInt(begin, 10, 64)
	return r.StatusCode == http.StatusPartialContent && err == nil && at == offset
}

// copy writes the body to the target until either is complete.
func (d *download) copy(ctx context.Context, t *target, body io.Reader, stalled *time.Timer) error {
	buffer := make([]byte, bufferBytes)
	for t.size < d.file.Size {
		n, err := body.Read(buffer[:min(bufferBytes, d.file.Size-t.size)])
		if n > 0 {
			stalled.Reset(d.fetcher.stall())
			written, errWrite := t.Write(buffer[:n])
			t.hash.Write(buffer[:written])
			t.size += int64(written)
			d.count.add(int64(written))
			if errWrite != nil {
				return &diskError{errWrite}
			}
		}
		switch {
		case t.size == d.file.Size:
			return nil
		case errors.Is(err, io.EOF):
			return fmt.Errorf("the transfer ended after %d of %d bytes", t.size, d.file.Size)
		case err != nil && context.Cause(ctx) != nil:
			return context.Cause(ctx)
		case err != nil:
			return withoutQuery(err)
		}
	}
	return nil
}

// diskError is a failure of the disk, which a further request does not mend.
type diskError struct{ error }

func (e *diskError) Unwrap() error { return e.error }

// mayRecover reports whether the same request may succeed later.
func mayRecover(ctx context.Context, err error) bool {
	var status *statusError
	var disk *diskError
	switch {
	case ctx.Err() != nil, errors.As(err, &disk):
		return false
	case errors.As(err, &status):
		return status.temporary() || status.status == http.StatusRequestedRangeNotSatisfiable
	}
	return true
}

// pauseAfter returns how long to wait after so many failures in a row, at least as long as the hub
// asks for.
func (f *Fetcher) pauseAfter(failures int, err error) time.Duration {
	pause := f.pause()
	for range failures - 1 {
		pause = min(2*pause, maxPause)
	}
	var status *statusError
	if errors.As(err, &status) {
		pause = max(pause, status.retryAfter)
	}
	return pause
}

// retry calls ask until it succeeds, or fails maxFailures times, or for good.
func (f *Fetcher) retry(ctx context.Context, hub *client, ask func() error) error {
	for failures := 1; ; failures++ {
		err := ask()
		if err == nil || failures >= maxFailures || !mayRecover(ctx, err) {
			return err
		}
		pause := f.pauseAfter(failures, err)
		if f.Patience > 0 && pause > f.Patience {
			return err
		}
		hub.report(Progress{Trouble: fmt.Sprintf("next try in %v: %v", pause.Round(time.Second), err)})
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}
