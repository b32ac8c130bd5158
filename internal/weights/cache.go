package weights

import (
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
	dir, err := s.cacheDir()
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

// path returns the path of what an engine loads.
func (c *cache) path(commit string, s Selection) string { return c.snapshot(commit, s.Load) }

// commit returns the commit of a revision when it was fetched last; empty if it never was.
func (c *cache) commit(revision string) string {
	if commitForm.MatchString(revision) {
		return revision
	}
	text, err := os.ReadFile(c.in("refs", filepath.FromSlash(revision)))
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
	return c.listing(s)
}

func (c *cache) listing(s Source) (*Listing, bool) {
	commit := c.commit(s.revision())
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

// complete returns the path of what an engine loads, if all of it is in the cache.
func (c *cache) complete(s Source) (string, bool) {
	l, ok := c.listing(s)
	if !ok {
		return "", false
	}
	commit := l.Commit
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

// record writes down what the hub said, and which commit the revision is.
func (c *cache) record(s Source, l *Listing) error {
	data, err := json.Marshal(l)
	if err != nil {
		return err
	}
	if err := replaceFile(c.listingPath(l.Commit), data); err != nil || s.revision() == l.Commit {
		return err
	}
	return replaceFile(c.in("refs", filepath.FromSlash(s.revision())), []byte(l.Commit))
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
