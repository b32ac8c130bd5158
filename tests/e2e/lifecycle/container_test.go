package lifecycle

import (
	"debug/elf"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// containerUser is the user of the image and of the manifests.
const containerUser = "65532"

// instructions returns the instructions of the container's definition, each as its words.
func instructions(t *testing.T) [][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testutil.Root(), "packaging", "container", "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	var all [][]string
	bare := regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(string(text), "")
	for line := range strings.Lines(strings.ReplaceAll(bare, "\\\n", "")) {
		if words := strings.Fields(line); len(words) > 0 {
			all = append(all, words)
		}
	}
	return all
}

// TestE2E_B11_TheContainer: what the definition of the container copies is in a release, and stages
// that it copies from come before. The programs then run a gateway as the user of the image, on a
// root that is read-only, without capabilities, with the configuration of the manifests.
func TestE2E_B11_TheContainer(t *testing.T) {
	t.Parallel()
	dist := sharedDist(t)
	checkInstructions(t, dist)
	root := layOut(t, dist)
	url, key := configureContainer(t, root)
	runContained(t, root)
	body := harness.ChatBody("chat", false, 3, "Hello")
	g := &harness.Gateway{T: t, URL: url}
	harness.Eventually(t, "a chat", func() error {
		a, err := g.TryPost(t.Context(), harness.ChatPath, body, "Authorization: Bearer "+key)
		if err == nil && a.StatusCode != 200 {
			err = fmt.Errorf("%s", a)
		}
		return err
	})
}

// checkInstructions checks the definition of the container against a release.
func checkInstructions(t *testing.T, dist string) {
	t.Helper()
	stages, copies := map[string]bool{}, 0
	var user, entrypoint, runs, all string
	for _, words := range instructions(t) {
		switch words[0] {
		case "FROM":
			runs = "" // those of the last stage count
			if len(words) == 4 {
				stages[words[3]] = true
			}
		case "RUN":
			runs += strings.Join(words[1:], " ")
			all += runs
		case "COPY":
			if from, ok := strings.CutPrefix(words[1], "--from="); ok {
				if !stages[from] {
					t.Errorf("%v: no stage before has this name", words)
				}
				continue
			}
			copies++
			for _, source := range words[1 : len(words)-1] {
				found, err := filepath.Glob(filepath.Join(dist, strings.ReplaceAll(source, "${TARGETARCH}", runtime.GOARCH)))
				if err != nil || len(found) != 1 {
					t.Errorf("%s is %v in a release, %v", source, found, err)
				}
			}
		case "USER":
			user = words[1]
		case "ENTRYPOINT":
			entrypoint = strings.Join(words[1:], " ")
		}
	}
	if user != containerUser+":"+containerUser || copies != 1 || entrypoint != `["tini", "--", "sluice"]` {
		t.Errorf("user %s, %d copies, entry point %s", user, copies, entrypoint)
	}
	for _, file := range []string{"LICENSE", "NOTICE"} { // of the Envoy in the image
		if !strings.Contains(all, "/out/usr/share/doc/envoy/"+file) {
			t.Errorf("the image has no %s of Envoy", file)
		}
	}
	// A volume of Docker's gets its owner from this directory. Without it the owner is root.
	if !strings.Contains(runs, "install -d -m 0700 -o "+containerUser+" -g "+containerUser+" /var/lib/sluice") {
		t.Errorf("no /var/lib/sluice for the user is made by %s", runs)
	}
}

// layOut makes the root of the container in a directory: the program of the release, Envoy, and the
// libraries that Envoy needs, which are those of this machine.
func layOut(t *testing.T, dist string) (root string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root may make the container's root read-only")
	}
	// Other users reach the directory only if its parents let them.
	root, err := os.MkdirTemp("", "sluice-root-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		testutil.Missing(t, "setpriv")
	}
	envoy := testutil.Tool(t, "envoy")
	for _, dir := range []string{"usr/local/bin", "usr/bin", "etc/sluice", "tmp", "var/lib/sluice", "proc", "dev"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	archives, err := filepath.Glob(filepath.Join(dist, "sluice-*-linux-"+runtime.GOARCH+".tar.gz"))
	if err != nil || len(archives) != 1 {
		t.Fatal(archives, err)
	}
	output(t, "tar", "-xzf", archives[0], "-C", filepath.Join(root, "usr/local/bin"), "--strip-components=1", "--no-same-owner")
	output(t, "cp", "-L", envoy, filepath.Join(root, "usr/local/bin/envoy"))
	output(t, "cp", "-L", setpriv, filepath.Join(root, "usr/bin/setpriv"))
	for _, library := range regexp.MustCompile(`/\S+`).FindAllString(output(t, "ldd", envoy, setpriv), -1) {
		if !strings.HasSuffix(library, ":") {
			output(t, "cp", "-L", "--parents", library, root)
		}
	}
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	return root
}

// configureContainer writes the configuration of the manifests with free ports, a key, and a
// simulated model in the place of the cluster. It returns the URL of the gateway and the key.
func configureContainer(t *testing.T, root string) (url, key string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testutil.Root(), "examples", "kubernetes", "base", "sluice.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	config := map[string]any{}
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	keys, tenants := harness.TenantKeys("acme")
	var mine map[string]any
	if err := yaml.Unmarshal([]byte(tenants), &mine); err != nil {
		t.Fatal(err)
	}
	delete(config, "kubernetes")
	for name, value := range mine {
		config[name] = value
	}
	for _, name := range []string{"listen", "admin", "health"} {
		config[name] = net.JoinHostPort("127.0.0.1", strconv.Itoa(testutil.FreePort(t)))
	}
	config["models"] = []any{map[string]any{"name": "chat", "engine": "sim"}}
	if text, err = yaml.Marshal(config); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "etc/sluice/sluice.yaml"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	return "http://" + config["listen"].(string), keys["acme"]
}

// containment starts a command as the container would run it. root is $ROOT and read-only, with the
// volumes of the Deployment, in a space of its own for processes and mounts. The shell is process 1
// in the place of tini: it reaps orphaned processes.
const containment = `set -e
mount --bind "$ROOT" "$ROOT"
mount -t proc proc "$ROOT/proc"
mount --bind /dev "$ROOT/dev"
mount -o remount,bind,ro "$ROOT"
mount -t tmpfs -o mode=1777 tmpfs "$ROOT/tmp"
mount -t tmpfs -o mode=2777,gid=65532 tmpfs "$ROOT/var/lib/sluice"
cd /
env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/ POD_NAME=sluice-0 \
  chroot "$ROOT" /usr/bin/setpriv --reuid 65532 --regid 65532 --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs \
  sluice up -c /etc/sluice/sluice.yaml
exit $?
`

// runContained runs the gateway in the root until the test ends, and checks that SIGTERM ends it
// well.
func runContained(t *testing.T, root string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "unshare", "--mount", "--pid", "--fork", "true").CombinedOutput(); err != nil {
		t.Skipf("no namespaces here: %v: %s", err, out)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", containment)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), "ROOT="+root), log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		defer func() {
			if t.Failed() {
				text, _ := os.ReadFile(log.Name())
				t.Logf("%s", text)
			}
		}()
		if gateway := firstChild(firstChild(cmd.Process.Pid)); gateway == 0 || syscall.Kill(gateway, syscall.SIGTERM) != nil {
			t.Error("the gateway runs no more")
			_ = cmd.Process.Kill()
		}
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the gateway ends with %v", err)
			}
		case <-time.After(2 * time.Minute):
			_ = cmd.Process.Kill()
			t.Error("the gateway does not end")
		}
	})
}

// firstChild returns the oldest child of a process, or 0.
func firstChild(pid int) int {
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	if words := strings.Fields(string(children)); err == nil && pid != 0 && len(words) > 0 {
		pid, _ = strconv.Atoi(words[0])
		return pid
	}
	return 0
}

// TestE2E_B11_TheReleaseForArm: the release for arm64 is a static program of that architecture. It
// runs, where qemu is installed.
func TestE2E_B11_TheReleaseForArm(t *testing.T) {
	t.Parallel()
	dist := filepath.Join(t.TempDir(), "dist")
	makeDistFor(t, dist, "arm64")
	output(t, "tar", "-xzf", filepath.Join(dist, "sluice-v9.9.9-linux-arm64.tar.gz"), "-C", dist, "--strip-components=1")
	path := filepath.Join(dist, "sluice")
	program, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	libraries, err := program.ImportedLibraries()
	if program.Machine != elf.EM_AARCH64 || err != nil || len(libraries) > 0 || program.Section(".interp") != nil {
		t.Errorf("machine %v, libraries %v, %v", program.Machine, libraries, err)
	}
	for _, name := range []string{"qemu-aarch64-static", "qemu-aarch64"} {
		if qemu, err := exec.LookPath(name); err == nil {
			if text := output(t, qemu, path, "version"); !strings.HasPrefix(text, "sluice v9.9.9\n") {
				t.Errorf("version: %s", text)
			}
			return
		}
	}
	t.Log("qemu is missing: the program was not run")
}
