package arch_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// maxFileBytes is the size limit of a file in git. A larger one is a program or data that does not
// belong there.
const maxFileBytes = 1 << 20

func TestNoLargeFileIsInGit(t *testing.T) {
	root, paths := gitFiles(t)
	if len(paths) < 100 {
		t.Fatalf("git tracks %d files, which cannot be the whole repository", len(paths))
	}
	for _, path := range paths {
		info, err := os.Lstat(filepath.Join(root, path))
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted in the working tree, and not yet in git
		}
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > maxFileBytes {
			t.Errorf("%s has %d bytes, more than %d: keep it out of git", path, info.Size(), maxFileBytes)
		}
	}
}
