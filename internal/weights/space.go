package weights

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// spareShare is the part of a file system that a fetch leaves free: one in so many.
	spareShare = 100
	// maxSpare is the most that it leaves free.
	maxSpare = 1 << 30
)

// claim is the room that a running fetch needs.
type claim struct {
	cache  *cache
	files  []File
	device uint64
}

// claims are those of all fetches of this process.
var claims struct {
	sync.Mutex
	running map[*claim]bool
}

// reserve keeps room for the missing files until release is called. It returns an error if the file
// system has less than they and the running fetches need. A blob that several fetches want counts
// once.
func (c *cache) reserve(files []File) (release func(), err error) {
	if err := os.MkdirAll(c.in("blobs"), 0o755); err != nil {
		return nil, diskFull(err, c.dir)
	}
	own := &claim{cache: c, files: files}
	var st unix.Stat_t
	if unix.Stat(c.in("blobs"), &st) == nil {
		own.device = uint64(st.Dev) //nolint:unconvert,gosec // its type is not the same on all systems
	}
	claims.Lock()
	defer claims.Unlock()
	if err := own.check(); err != nil {
		return nil, err
	}
	if claims.running == nil {
		claims.running = map[*claim]bool{}
	}
	claims.running[own] = true
	return func() {
		claims.Lock()
		defer claims.Unlock()
		delete(claims.running, own)
	}, nil
}

// check returns an error if there is no room for the claim. claims is locked.
func (o *claim) check() error {
	blobs := map[string]int64{}
	o.add(blobs)
	own := sum(blobs)
	for other := range claims.running {
		if other.device == o.device {
			other.add(blobs)
		}
	}
	others := sum(blobs) - own
	var disk unix.Statfs_t
	if err := unix.Statfs(o.cache.in("blobs"), &disk); err != nil {
		return nil // the write will tell
	}
	free, spare := int64(disk.Bavail)*disk.Bsize, min(int64(disk.Blocks)*disk.Bsize/spareShare, maxSpare)
	if own == 0 || own+others+spare <= free {
		return nil
	}
	return fmt.Errorf("no room: %s more are needed in %s, where %s are free, of which running fetches need %s and %s are spare; "+
		"%s",
		FormatBytes(own), o.cache.dir, FormatBytes(free), FormatBytes(others), FormatBytes(spare), makeRoom)
}

func (o *claim) add(blobs map[string]int64) {
	for _, f := range o.files {
		if f.Hash == "" {
			blobs[o.cache.in(f.Path)] = f.Size
			continue
		}
		blob, missing := o.cache.blob(f.Hash), f.Size
		if isComplete(blob, f.Size) {
			missing = 0
		} else if info, err := os.Stat(o.cache.partial(f.Hash)); err == nil {
			missing -= min(info.Size(), f.Size)
		}
		blobs[blob] = missing
	}
}

func sum(blobs map[string]int64) (total int64) {
	for _, size := range blobs {
		total += size
	}
	return total
}
