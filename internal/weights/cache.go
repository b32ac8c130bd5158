package weights

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// cache is the part of the cache directory that belongs to one repository.
type cache struct {
	// dir is the cache directory; folder is the name of the repository's folder in it.
	dir, folder string
	repository  string
}

// openCache returns the cache of the source's repository. It creates nothing.
func openCache(s Source) (*cache, error) {
	if !ValidRepository(s.Repository) {
		return nil, fmt.Errorf("%q is no id of a repository: want ORG/NAME", s.Repository)
	}
	if !ValidPath(s.revision()) {
		return nil, fmt.Errorf("%q is no revision", s.revision())
	}
	dir, err := s.Dir()
	if err != nil {
		return nil, err
	}
	folder := "models--" + strings.ReplaceAll(s.Repository, "/", "--")
	return &cache{dir: dir, folder: folder, repository: s.Repository}, nil
}

func (c *cache) in(names ...string) string {
	return filepath.Join(append([]string{c.dir, c.folder}, names...)...)
}

func (c *cache) blob(hash string) string    { return c.in("blobs", hash) }
func (c *cache) partial(hash string) string { return c.blob(hash) + ".incomplete" }
func (c *cache) lockPath(hash string) string {
	return filepath.Join(c.dir, ".locks", c.folder, hash+".lock")
}
func (c *cache) listingPath(commit string) string { return c.in(".sluice", commit+".json") }
func (c *cache) snapshot(commit, path string) string {
	return c.in("snapshots", commit, filepath.FromSlash(path))
}

func (c *cache) path(commit string, s Selection) string { return c.snapshot(commit, s.Load) }

// refPath returns the path of the file that says which commit a revision is. All programs that use
// the cache share it.
func (c *cache) refPath(revision string) string { return c.in("refs", filepath.FromSlash(revision)) }

// selectionPath returns the path of the file that says from which commit the files that s selects
// were fetched. A fetch of other files does not change it.
func (c *cache) selectionPath(s Source) string {
	hash := sha256.Sum256(fmt.Appendf(nil, "%q %q %t", s.revision(), s.File, s.GGUF))
	return c.in(".sluice", "selections", hex.EncodeToString(hash[:]))
}

// commit returns the commit of a revision when it was fetched last; empty if it never was.
func (c *cache) commit(revision string) string {
	if commitForm.MatchString(revision) {
		return revision
	}
	return readRef(c.refPath(revision))
}

// readRef returns the commit that a file names; empty if it names none.
func readRef(path string) string {
	text, err := os.ReadFile(path)
	if commit := strings.TrimSpace(string(text)); err == nil && commitForm.MatchString(commit) {
		return commit
	}
	return ""
}

// Cached returns what the hub said of the revision when something of it was fetched last. It
// returns false if nothing was. The hub is not asked.
func Cached(s Source) (*Listing, bool) {
	c, err := openCache(s)
	if err != nil {
		return nil, false
	}
	return c.listing(c.commit(s.revision()))
}

// listing returns what the hub said of a commit.
func (c *cache) listing(commit string) (*Listing, bool) {
	data, err := os.ReadFile(c.listingPath(commit))
	if err != nil {
		return nil, false
	}
	var l Listing
	if json.Unmarshal(data, &l) != nil || l.Commit != commit {
		return nil, false
	}
	return &l, true
}

// Fetched returns the path of what an engine loads, if all of it is in the cache. A fetch then asks
// the hub nothing.
func Fetched(s Source) (path string, ok bool) {
	c, err := openCache(s)
	if err != nil {
		return "", false
	}
	return c.complete(s)
}

// complete returns the path of what an engine loads, if all of it is in the cache. It looks for the
// commit from which it was fetched, or else for the one that the revision is.
func (c *cache) complete(s Source) (string, bool) {
	if !commitForm.MatchString(s.revision()) {
		if path, ok := c.completeAt(readRef(c.selectionPath(s)), s); ok {
			return path, true
		}
	}
	return c.completeAt(c.commit(s.revision()), s)
}

func (c *cache) completeAt(commit string, s Source) (string, bool) {
	l, ok := c.listing(commit)
	if !ok {
		return "", false
	}
	selection, err := l.Select(s)
	if err != nil {
		return "", false
	}
	for _, f := range selection.Files {
		if !isComplete(c.snapshot(commit, f.Path), f.Size) {
			return "", false
		}
	}
	return c.path(commit, selection), true
}

// isComplete reports whether the file exists and has the size. Only verified content gets its final
// name.
func isComplete(path string, size int64) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Size() == size
}

// record writes down what the hub said, which commit the revision is, and that the files of s are
// those of this commit.
func (c *cache) record(s Source, l *Listing) error {
	data, err := json.Marshal(l)
	if err != nil {
		return err
	}
	if err := replaceFile(c.listingPath(l.Commit), data); err != nil || s.revision() == l.Commit {
		return err
	}
	if err := replaceFile(c.selectionPath(s), []byte(l.Commit)); err != nil {
		return err
	}
	return replaceFile(c.refPath(s.revision()), []byte(l.Commit))
}

// replaceFile writes a file in one step, with its directory.
func replaceFile(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// checkLinks returns an error if the file system of the cache has no symbolic links, as exFAT, SMB
// and object storage often have not. A fetch makes its links only at the end.
func (c *cache) checkLinks() error {
	dir, err := os.MkdirTemp(c.dir, ".links-*")
	if err != nil {
		return diskFull(err, c.dir)
	}
	fresh := filepath.Join(dir, "fresh")
	if err = os.Symlink("nothing", fresh); err == nil {
		err = os.Rename(fresh, filepath.Join(dir, "link"))
	}
	err = errors.Join(err, os.RemoveAll(dir))
	if err == nil || isDiskFull(err) {
		return diskFull(err, c.dir)
	}
	return fmt.Errorf("%s cannot have the symbolic links by which a cache names its files; "+
		"set cache_dir of the registry to another disk; on Kubernetes use another storage class for its cache: %w", c.dir, err)
}

// link links the blob of a file into the snapshot.
func (c *cache) link(commit string, f File) error {
	path := c.snapshot(commit, f.Path)
	if isComplete(path, f.Size) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	target, err := filepath.Rel(filepath.Dir(path), c.blob(f.Hash))
	if err != nil {
		return err
	}
	fresh := fmt.Sprintf("%s.new-%d", path, os.Getpid())
	if err := os.Symlink(target, fresh); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.Rename(fresh, path); err != nil && !isComplete(path, f.Size) {
		return err
	}
	return nil
}
