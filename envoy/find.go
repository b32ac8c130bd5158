package envoy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"
)

// EnvVar names the environment variable that tells where the Envoy binary is.
const EnvVar = "SLUICE_ENVOY"

// versionTimeout is for a cold disk: the binary has 100 MB.
const versionTimeout = 20 * time.Second

// Find returns the absolute path of the Envoy binary. It looks at flag, at $SLUICE_ENVOY, along $PATH, and at last where
// "make envoy" puts it: .tools/envoy in the working directory, or beside the directory that holds our own binary. A place that
// is named and holds no program is an error; Find does not look any further then.
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

type finder struct {
	env      string
	lookPath func(string) (string, error)
	dirs     []string // which may have a .tools/envoy
}

func (f finder) find(flag string) (string, error) {
	switch {
	case flag != "":
		return f.named(flag, "--envoy")
	case f.env != "":
		return f.named(f.env, "$"+EnvVar)
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
	return "", errors.New(`no Envoy found: run "make envoy", put envoy on the PATH, or name the binary with --envoy or $` + EnvVar)
}

func (f finder) named(path, by string) (string, error) {
	if !isProgram(path) {
		return "", fmt.Errorf(`no Envoy at %s, which %s names: run "make envoy" for one at .tools/envoy`, path, by)
	}
	return filepath.Abs(path)
}

func isProgram(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0
}

var versionPattern = regexp.MustCompile(`version: \S*?/(\d+\.\d+\.\d+[^/\s]*)/`)

// Version asks the binary for its version, such as 1.40.0.
func Version(ctx context.Context, binary string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary, "--version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", binary, err)
	}
	m := versionPattern.FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("%s --version: this is no Envoy's answer: %.80q", binary, out)
	}
	return string(m[1]), nil
}
