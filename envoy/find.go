package envoy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-gateway/sluice/internal/process"
)

// EnvVar is the environment variable with the path of the Envoy binary.
const EnvVar = "SLUICE_ENVOY"

// versionTimeout bounds `envoy --version`. The binary has 100 MB, which a cold disk reads slowly.
const versionTimeout = 20 * time.Second

// Find returns the absolute path of the Envoy binary. It tries flag, then $SLUICE_ENVOY, then
// $PATH. At last it tries the place where "make envoy" puts the binary: .tools/envoy in the working
// directory, or beside the directory of Sluice's own binary. If flag or $SLUICE_ENVOY names a path
// without a program, Find returns an error and tries nothing else.
func Find(flag string) (string, error) {
	f := finder{
		env:      os.Getenv(EnvVar),
		lookPath: exec.LookPath,
	}
	if wd, err := os.Getwd(); err == nil {
		f.dirs = append(f.dirs, wd)
	}
	if self, err := os.Executable(); err == nil {
		f.dirs = append(f.dirs, filepath.Dir(filepath.Dir(self)))
	}
	return f.find(flag)
}

// finder is the environment of Find, which tests replace.
type finder struct {
	env      string
	lookPath func(string) (string, error)
	// dirs are the directories that may have a .tools/envoy.
	dirs []string
}

// find implements Find.
func (f finder) find(flag string) (string, error) {
	switch {
	case flag != "":
		return f.checked(flag, "--envoy")
	case f.env != "":
		return f.checked(f.env, "$"+EnvVar)
	}
	if path, err := f.lookPath("envoy"); err == nil {
		return filepath.Abs(path)
	}
	for _, dir := range f.dirs {
		path := filepath.Join(dir, ".tools", "envoy")
		if isProgram(path) {
			return filepath.Abs(path)
		}
	}
	return "", errNone
}

// errNone says that Find has found no Envoy.
var errNone = errors.New("no Envoy found: put envoy on the PATH, or name the binary with --envoy or $" + EnvVar)

// FindKept returns what Find finds, or the tested Envoy that FindOrFetch has fetched before. If
// there is neither, fetches says that FindOrFetch would fetch one to the path.
func FindKept(flag string) (path string, fetches bool, err error) {
	path, err = Find(flag)
	if !errors.Is(err, errNone) {
		return path, false, err
	}
	f, err := newFetcher(nil)
	if err != nil {
		return "", false, err
	}
	return f.path(), !isProgram(f.path()), nil
}

// FindOrFetch returns what FindKept finds. If there is none, it fetches the tested Envoy. tell gets
// a line before it does.
func FindOrFetch(ctx context.Context, flag string, tell func(what string)) (string, error) {
	path, fetches, err := FindKept(flag)
	if !fetches {
		return path, err
	}
	f, err := newFetcher(tell)
	if err != nil {
		return "", err
	}
	return f.get(ctx)
}

// checked returns the absolute path of a program that the setting source names.
func (f finder) checked(path, source string) (string, error) {
	if err := programFault(path); err != nil {
		return "", fmt.Errorf("no Envoy can be run at %s, which %s names: %w: name another one, or none for Sluice to fetch Envoy %s",
			path, source, err, TestedVersion)
	}
	return filepath.Abs(path)
}

// isProgram reports whether path is a file that this user may execute.
func isProgram(path string) bool { return programFault(path) == nil }

// programFault returns why path is no file that this user may execute.
func programFault(path string) error {
	st, err := os.Stat(path)
	fault := new(fs.PathError)
	switch {
	case errors.As(err, &fault):
		return fault.Err // without the path
	case err != nil:
		return err
	case !st.Mode().IsRegular():
		return errors.New("it is not a file")
	}
	return unix.Access(path, unix.X_OK)
}

// versionPattern finds the version in the output of `envoy --version`.
var versionPattern = regexp.MustCompile(`version: \S*?/(\d+\.\d+\.\d+[^/\s]*)/`)

// Version runs the binary with --version and returns its version, such as 1.40.0.
func Version(ctx context.Context, binary string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "--version")
	cmd.Env = process.Environment()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", binary, err)
	}
	m := versionPattern.FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("%s --version: the output is not that of an Envoy: %.80q", binary, out)
	}
	return string(m[1]), nil
}
