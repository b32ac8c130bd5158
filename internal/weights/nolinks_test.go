package weights_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-gateway/sluice/internal/weights/hubtest"
)

// TestU14_AVolumeWithoutSymbolicLinks: a fetch into a volume that has no symbolic links fails
// before it has fetched anything, and says what to do.
func TestU14_AVolumeWithoutSymbolicLinks(t *testing.T) {
	if os.Getenv("WITHOUT_LINKS") != "" {
		fetchWithoutLinks(t)
		return
	}
	again := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
	again.Env = append(os.Environ(), "WITHOUT_LINKS=1")
	if out, err := again.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
		t.Errorf("%v\n%s", err, out)
	}
}

func fetchWithoutLinks(t *testing.T) {
	hub := hubtest.New(t)
	hub.Put(repository, tiny())
	s := source(t, hub)
	forbidLinks(t)
	_, err := fetcher().Fetch(t.Context(), s, nil)
	if err == nil || !strings.Contains(err.Error(), "cannot have the symbolic links") || !strings.Contains(err.Error(), s.CacheDir) {
		t.Errorf("the error is %v", err)
	}
	if fetched := hub.Requests(); len(fetched) > 0 {
		t.Errorf("fetched: %v", fetched)
	}
	if left, _ := filepath.Glob(filepath.Join(s.CacheDir, ".links*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

// forbidLinks has the kernel refuse symbolic links to this process, as file systems do that have
// none.
func forbidLinks(t *testing.T) {
	t.Helper()
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_SYMLINKAT, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread() // The flag below has all threads get the filter.
	defer runtime.UnlockOSThread()
	const setFilter = 1
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Skip(err)
	}
	if _, _, fault := unix.Syscall(unix.SYS_SECCOMP, setFilter, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program))); fault != 0 {
		t.Skip(fault)
	}
}
