package filter

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/testutil"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	var err error
	if workDir, err = os.MkdirTemp("", "sluice-filter"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(workDir)
		os.Exit(code)
	}))
}

// workDir has what is compiled once for several tests.
var workDir string

// name is the name by which the tests make Envoy load the module. Its file is called lib + name +
// .so.
const name = "sluice-filter"

// testTimeout bounds every wait. It is long enough for a busy machine.
const testTimeout = 3 * time.Minute

// modules returns a directory with the filter, compiled once for all tests.
func modules(t testing.TB) string {
	t.Helper()
	dir, err := module()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

var module = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(workDir, "module")
	build := exec.Command("../../scripts/module.sh")
	build.Env = append(os.Environ(), "OUT="+dir)
	if out, err := build.CombinedOutput(); err != nil {
		return "", &buildError{out, err}
	}
	return dir, os.Rename(filepath.Join(dir, name+"-"+runtime.GOARCH+".so"), filepath.Join(dir, "lib"+name+".so"))
})

type buildError struct {
	out []byte
	err error
}

func (e *buildError) Error() string { return e.err.Error() + "\n" + string(e.out) }

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	testutil.Eventually(t, what, holds)
}
