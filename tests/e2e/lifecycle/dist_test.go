package lifecycle

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_B11_ThePackageRuns: the Debian package has a static program that runs a gateway without
// an environment, make or Go, and a unit that systemd accepts. Its Envoy asks by the filter. Two
// builds have the same bytes.
func TestE2E_B11_ThePackageRuns(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"dpkg-deb", "go"} {
		if _, err := exec.LookPath(tool); err != nil {
			testutil.Missing(t, tool)
		}
	}
	dir := t.TempDir()
	first, second := sharedDist(t), filepath.Join(dir, "second")
	makeDist(t, second)
	sums, err := os.ReadFile(filepath.Join(first, "SHA256SUMS"))
	again, errAgain := os.ReadFile(filepath.Join(second, "SHA256SUMS"))
	if err != nil || errAgain != nil || string(sums) != string(again) || strings.Count(string(sums), "\n") != 4 {
		t.Errorf("%v, %v: two builds have the checksums\n%s\n%s", err, errAgain, sums, again)
	}
	root := filepath.Join(dir, "root")
	packages, err := filepath.Glob(filepath.Join(first, "*.deb"))
	if err != nil || len(packages) != 1 {
		t.Fatal(packages, err)
	}
	output(t, "dpkg-deb", "-x", packages[0], root)
	if scripts := output(t, "dpkg-deb", "--ctrl-tarfile", packages[0]); !strings.Contains(scripts, "postrm") {
		t.Error("the package has no script for its removal")
	}
	program := filepath.Join(root, "usr/bin/sluice")
	if text := output(t, program, "version"); !strings.HasPrefix(text, "sluice v9.9.9\n") {
		t.Errorf("version: %s", text)
	}
	checkBill(t, filepath.Join(first, "sluice-v9.9.9-linux-"+runtime.GOARCH+".cdx.json"))
	checkLicences(t, filepath.Join(first, "sluice-v9.9.9-linux-"+runtime.GOARCH), filepath.Join(root, "usr/share/doc/sluice"))
	checkLinks(t, filepath.Join(first, "sluice-v9.9.9-linux-"+runtime.GOARCH+".tar.gz"))
	checkChart(t, filepath.Join(first, "sluice-9.9.9.tgz"))
	checkUnit(t, root, dir)
	runPackaged(t, program)
}

// shared is the release of this machine's architecture that tests read and do not change.
var shared struct {
	once sync.Once
	dir  string
}

// sharedDist returns the directory of shared, which the first caller makes.
func sharedDist(t *testing.T) string {
	t.Helper()
	shared.once.Do(func() {
		dir, err := os.MkdirTemp("", "sluice-dist-")
		if err != nil {
			t.Fatal(err)
		}
		makeDist(t, dir)
		shared.dir = dir
	})
	if shared.dir == "" {
		t.Fatal("the release was not made, see the test that tried")
	}
	return shared.dir
}

// makeDist makes a release of this machine's architecture.
func makeDist(t *testing.T, to string) {
	t.Helper()
	makeDistFor(t, to, runtime.GOARCH)
}

// makeDistFor makes a release of one architecture.
func makeDistFor(t *testing.T, to, arch string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(testutil.Root(), "scripts", "dist.sh"))
	cmd.Env = append(os.Environ(), "DIST="+to, "ARCHS="+arch, "VERSION=v9.9.9", "SOURCE_DATE_EPOCH=1900000000", "COMPRESSION=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// output runs a program and returns what it prints.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return string(out)
}

// checkBill checks that the bill of materials names modules of the program.
func checkBill(t *testing.T, path string) {
	t.Helper()
	var bill struct {
		BomFormat  string
		Components []struct{ Name, Version, PURL string }
	}
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &bill)
	}
	if err != nil || bill.BomFormat != "CycloneDX" || len(bill.Components) < 50 {
		t.Errorf("%v: %d components", err, len(bill.Components))
	}
	if !strings.Contains(string(text), "pkg:golang/google.golang.org/grpc@v") {
		t.Errorf("no gRPC: %.300s", text)
	}
	if !strings.Contains(string(text), `"sluice-filter-`+runtime.GOARCH+`.so"`) {
		t.Errorf("no filter: %.300s", text)
	}
}

// checkLinks checks that no link in a document of the archive leads to a file beside it.
func checkLinks(t *testing.T, archive string) {
	t.Helper()
	for _, name := range []string{"README.md", "CHANGELOG.md"} {
		text := output(t, "tar", "-xzOf", archive, "--wildcards", "*/"+name)
		links := regexp.MustCompile(`\]\(([^)]*)\)`).FindAllStringSubmatch(text, -1)
		for _, link := range links {
			if !strings.HasPrefix(link[1], "https://") && !strings.HasPrefix(link[1], "http://") && !strings.HasPrefix(link[1], "#") {
				t.Errorf("a link of %s leads to %s", name, link[1])
			}
		}
		if !strings.Contains(text, "](https://github.com/sluice-gateway/sluice/blob/") {
			t.Errorf("%s has no link to a document", name)
		}
	}
}

// checkLicences checks that the archive of the release and the documents of the package have the
// licences of all modules of the bill, as these licences ask.
func checkLicences(t *testing.T, release, documents string) {
	t.Helper()
	const name = "LICENSES-OF-OTHERS.txt"
	var bill struct {
		Components []struct{ Type, Name, Version string }
	}
	text, err := os.ReadFile(release + ".cdx.json")
	if err == nil {
		err = json.Unmarshal(text, &bill)
	}
	if err != nil {
		t.Fatal(err)
	}
	packaged, err := os.ReadFile(filepath.Join(documents, name))
	if err != nil {
		t.Fatal(err)
	}
	licences := output(t, "tar", "-xzOf", release+".tar.gz", filepath.Base(release)+"/"+name)
	if licences != string(packaged) || strings.Contains(licences, testutil.Root()) {
		t.Error("the archive and the package have other licences, or name folders of this machine")
	}
	if len(bill.Components) == 0 {
		t.Error("the bill has no component")
	}
	for _, c := range bill.Components {
		if c.Type == "library" && c.Name != "std" && !strings.Contains(licences, "\n"+c.Name+" "+c.Version+"\n") {
			t.Errorf("the licence of %s %s is missing", c.Name, c.Version)
		}
	}
	for _, want := range []string{"\nGo's standard library\n", "\nuplot\n", "Redistributions in binary form", "Permission is hereby granted"} {
		if !strings.Contains(licences, want) {
			t.Errorf("the licences lack %q", want)
		}
	}
}

// checkChart checks that Helm renders the packed chart, with the image of the release and without
// links out of the archive.
func checkChart(t *testing.T, path string) {
	t.Helper()
	helm := testutil.Tool(t, "helm")
	if text := output(t, helm, "show", "chart", path); !strings.Contains(text, "\nversion: 9.9.9\n") {
		t.Errorf("the chart is %s", text)
	}
	text := output(t, helm, "template", "sluice", path)
	if !strings.Contains(text, `image: "sluice:v9.9.9"`) || !strings.Contains(text, "name: inferencemodels.sluice.dev") || strings.Contains(text, "symbolic link") {
		t.Errorf("the chart makes %.2000s", text)
	}
}

// checkUnit has systemd check the unit of the package, with the program where it was unpacked.
func checkUnit(t *testing.T, root, dir string) {
	t.Helper()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Log("systemd-analyze is missing: the unit is not checked")
		return
	}
	unit, err := os.ReadFile(filepath.Join(root, "usr/lib/systemd/system/sluice.service"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "sluice.service")
	text := strings.Replace(string(unit), "/usr/bin/sluice", filepath.Join(root, "usr/bin/sluice"), 1)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(output(t, "systemd-analyze", "verify", path)) {
		if !strings.Contains(line, "'DelegateSubgroup'") { // before systemd 254
			t.Errorf("systemd says: %s", line)
		}
	}
	output(t, "systemd-analyze", "security", "--offline=true", "--threshold=33", path)
}

// TestPurgeLeavesNothing: the package leaves its data when it is removed, and takes them and the
// secrets along when it is purged. Files of others in its folder stay.
func TestPurgeLeavesNothing(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	data := []string{"var/lib/sluice/usage/ledger", "var/cache/sluice/tools/envoy", "var/log/sluice/log", "etc/sluice/environment"}
	for _, name := range append(data, "etc/sluice/mine.yaml") {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	there := func() (names []string) {
		for _, name := range append(data, "etc/sluice/mine.yaml", "var/lib/sluice", "etc/sluice") {
			if _, err := os.Stat(filepath.Join(root, name)); err == nil {
				names = append(names, name)
			}
		}
		return names
	}
	do := func(action string) {
		cmd := exec.Command(filepath.Join(testutil.Root(), "packaging", "debian", "postrm"), action)
		cmd.Env = append(os.Environ(), "DPKG_ROOT="+root)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", action, err, out)
		}
	}
	if do("remove"); len(there()) != 7 {
		t.Errorf("after a removal there is %v", there())
	}
	if do("purge"); !slices.Equal(there(), []string{"etc/sluice/mine.yaml", "etc/sluice"}) {
		t.Errorf("after a purge there is %v", there())
	}
	if err := os.Remove(filepath.Join(root, "etc/sluice/mine.yaml")); err != nil {
		t.Fatal(err)
	}
	if do("purge"); len(there()) != 0 {
		t.Errorf("after a second purge there is %v", there())
	}
}

// TestVersionsOfPackagesSort: apt takes a later release for an upgrade, also after a pre-release
// and between two builds without a version.
func TestVersionsOfPackagesSort(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("dpkg"); err != nil {
		testutil.Missing(t, "dpkg")
	}
	before := ""
	for i, version := range []string{
		"c30974aa", "1234567-dirty", "0abcdef", "v1.2.0-rc.1", "v1.2.0-rc.1-3-g0abcdef", "v1.2.0-rc.2", "v1.2.0", "v1.2.0-5-g9abcdef", "v1.2.0-12-g0abcdef-dirty", "v1.2.1",
	} {
		cmd := exec.Command(filepath.Join(testutil.Root(), "scripts", "debian-version.sh"), version)
		cmd.Env = append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", 1900000000+i))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		now := strings.TrimSpace(string(out))
		if text, err := exec.Command("dpkg", "--validate-version", now).CombinedOutput(); err != nil || strings.Contains(now, "-") {
			t.Errorf("dpkg says of %s: %v\n%s", now, err, text)
		}
		if before != "" && exec.Command("dpkg", "--compare-versions", before, "lt", now).Run() != nil {
			t.Errorf("%s does not sort before %s", before, now)
		}
		before = now
	}
}

// TestVersionsOfChartsSort: helm takes a later release for an upgrade, also after a pre-release and
// after commits without a tag.
func TestVersionsOfChartsSort(t *testing.T) {
	t.Parallel()
	before := ""
	for _, version := range []string{
		"c30974aa-dirty", "v1.2.0-rc.1", "v1.2.0-rc.1-3-g0abcdef", "v1.2.0-rc.2", "v1.2.0", "v1.2.0-5-g9abcdef", "v1.2.0-12-g0abcdef-dirty", "v1.2.1-rc.1", "v1.2.1",
	} {
		now := strings.TrimSpace(output(t, filepath.Join(testutil.Root(), "scripts", "chart-version.sh"), version))
		if before != "" && compareSemantic(before, now) >= 0 {
			t.Errorf("%s does not sort before %s", before, now)
		}
		before = now
	}
}

// compareSemantic compares two semantic versions by the rules of https://semver.org.
func compareSemantic(a, b string) int {
	numberOf := func(text string) (n int, isNumber bool) {
		n, err := strconv.Atoi(text)
		return n, err == nil
	}
	identifiers := func(a, b string) int {
		return slices.CompareFunc(strings.Split(a, "."), strings.Split(b, "."), func(a, b string) int {
			x, numeric := numberOf(a)
			y, alsoNumeric := numberOf(b)
			switch {
			case numeric && alsoNumeric:
				return cmp.Compare(x, y)
			case numeric != alsoNumeric: // a number is before a text
				return map[bool]int{true: -1, false: 1}[numeric]
			}
			return cmp.Compare(a, b)
		})
	}
	release, pre, isPre := strings.Cut(a, "-")
	otherRelease, otherPre, otherIsPre := strings.Cut(b, "-")
	if c := identifiers(release, otherRelease); c != 0 || isPre != otherIsPre {
		return cmp.Or(c, map[bool]int{true: -1, false: 1}[isPre])
	}
	return identifiers(pre, otherPre)
}

// runPackaged runs a gateway of the program with an empty environment, and chats.
func runPackaged(t *testing.T, program string) {
	t.Helper()
	g := harness.Prepare(t, "models: [{name: chat, engine: sim}]\n")
	cmd := exec.Command(program, "up", "-c", g.Config)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = []string{}, t.TempDir(), g.Log, g.Log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("it ends with %v", err)
			}
		case <-time.After(testutil.Patience):
			_ = cmd.Process.Kill()
			t.Error("it does not end")
		}
	})
	body := harness.ChatBody("chat", false, 3, "Hello")
	harness.Eventually(t, "a chat", func() error {
		a, err := g.TryPost(t.Context(), harness.ChatPath, body)
		if err == nil && a.StatusCode != 200 {
			err = fmt.Errorf("%s", a)
		}
		if err != nil {
			return fmt.Errorf("%w: %s", err, g.LogText())
		}
		return nil
	})
	var status struct{ Envoy struct{ Filter string } }
	if g.Get("/api/v1/status", &status); status.Envoy.Filter != "module" {
		t.Errorf("Envoy asks by %q", status.Envoy.Filter)
	}
}
