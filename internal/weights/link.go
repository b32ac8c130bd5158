package weights

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Link makes a symbolic link to what was fetched, in place of an earlier link. The link is
// relative, so that it holds wherever the cache is mounted. It fails for a part of a split file,
// which has to keep its name, by which an engine finds the other parts: the caller then links the
// directory.
func Link(link, target string) error {
	if part.MatchString(target) {
		return fmt.Errorf("%s is a part of a split file: name the file of the source", filepath.Base(target))
	}
	relative, err := filepath.Rel(filepath.Dir(link), target)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return err
	}
	temporary := fmt.Sprintf("%s.%d", link, os.Getpid())
	// In a container each process has the same id, and one that was killed may have left this name.
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(relative, temporary); err != nil {
		return err
	}
	if err := os.Rename(temporary, link); err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	return nil
}
