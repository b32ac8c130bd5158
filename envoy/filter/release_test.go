package filter

import (
	"bytes"
	"debug/elf"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// Releases have the filter for both architectures. zig makes the same bytes in another directory
// and with an empty cache. The filter needs nothing but an old libc and Envoy.
func TestB6_ReleasedFiltersAreReproducibleAndNeedOnlyLibc(t *testing.T) {
	t.Parallel()
	zig := testutil.Tool(t, "zig")
	first, second := releasedFilters(t, zig), releasedFilters(t, zig, "ZIG_GLOBAL_CACHE_DIR="+t.TempDir())
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		file := "sluice-filter-" + arch + ".so"
		content, err := os.ReadFile(filepath.Join(first, file))
		again, errAgain := os.ReadFile(filepath.Join(second, file))
		if err != nil || errAgain != nil || !bytes.Equal(content, again) {
			t.Fatalf("%s: %v, %v: %d and %d bytes, which differ", arch, err, errAgain, len(content), len(again))
		}
		checkFilter(t, content, machine)
	}
}

// releasedFilters compiles the filter for all architectures in a new copy of its sources, and
// returns the directory of the result. zig uses the cache of the user, or that of a variable.
func releasedFilters(t *testing.T, zig string, variables ...string) string {
	t.Helper()
	root, store := copyOfSources(t), t.TempDir()
	zig, err := filepath.EvalSymlinks(zig)
	if err == nil {
		err = os.Symlink(zig, filepath.Join(store, filepath.Base(zig)))
	}
	if err != nil {
		t.Fatal(err)
	}
	built := filepath.Join(root, "built")
	compile := exec.Command(filepath.Join(root, "scripts/module.sh"), "amd64", "arm64")
	compile.Env = slices.Concat(os.Environ(), []string{"OUT=" + built, "SLUICE_TOOLS=" + store}, variables)
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return built
}

// copyOfSources returns a directory with the sources of the filter, and what compiles them.
func copyOfSources(t *testing.T) (root string) {
	t.Helper()
	onlyOnce(t)
	root = t.TempDir()
	for _, name := range []string{"scripts/lib.sh", "scripts/module.sh", "scripts/zig.sh", "envoy/filter/src"} {
		to := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("cp", "-R", filepath.Join(testutil.Root(), name), to).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	return root
}

// A build for another architecture has its filter by zig. Without zig it says in one line why the
// program does without, and no filter of before is left.
func TestB6_ABuildForAnotherArchitecture(t *testing.T) {
	t.Parallel()
	zig := testutil.Tool(t, "zig")
	other, machine := "arm64", elf.EM_AARCH64
	if runtime.GOARCH == other {
		other, machine = "amd64", elf.EM_X86_64
	}
	root := copyOfSources(t)
	file := filepath.Join(root, "envoy/filter/built/sluice-filter-"+other+".so")
	build := func() string {
		t.Helper()
		c := exec.Command(filepath.Join(root, "scripts/module.sh"), "auto")
		c.Env = append(os.Environ(), "GOARCH="+other)
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("of before"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := build(); strings.Count(out, "\n") != 1 || !strings.Contains(out, "cc compiles for "+runtime.GOARCH+", not "+other) {
		t.Errorf("without zig: %q", out)
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the filter of before: %v", err)
	}
	if err := os.Symlink(zig, filepath.Join(root, ".tools/zig")); err != nil {
		t.Fatal(err)
	}
	out := build()
	content, err := os.ReadFile(file)
	if err != nil || out != "" {
		t.Fatalf("with zig: %v, %q", err, out)
	}
	checkFilter(t, content, machine)
}

// checkFilter checks what a compiled filter is and what it needs.
func checkFilter(t *testing.T, content []byte, machine elf.Machine) {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	libraries, err := f.ImportedLibraries()
	libraries = slices.DeleteFunc(libraries, func(name string) bool { return name == "libc.so.6" || name == "libpthread.so.0" })
	if err != nil || f.Machine != machine || f.Type != elf.ET_DYN || len(libraries) > 0 {
		t.Errorf("%v, a file of %v and %v that needs %v", err, f.Machine, f.Type, libraries)
	}
	symbols, err := f.ImportedSymbols()
	if err != nil || len(symbols) < 30 {
		t.Errorf("%d symbols: %v", len(symbols), err)
	}
	for _, s := range symbols {
		if !strings.HasPrefix(s.Name, "envoy_dynamic_module_callback_") && !inOldLibc(s.Version) {
			t.Errorf("%v: %s of version %q is not Envoy's, nor in glibc 2.17", machine, s.Name, s.Version)
		}
	}
	exported, err := f.DynamicSymbols()
	for _, s := range exported {
		if s.Section != elf.SHN_UNDEF && !strings.HasPrefix(s.Name, "envoy_dynamic_module_on_") {
			t.Errorf("%v, %v: %s is visible", err, machine, s.Name)
		}
	}
}

// inOldLibc tells whether glibc 2.17 has a version of symbols, such as GLIBC_2.14.
func inOldLibc(version string) bool {
	major, minor, _ := strings.Cut(strings.TrimPrefix(version, "GLIBC_"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	n, err := strconv.Atoi(minor)
	return major == "2" && err == nil && n <= 17
}
