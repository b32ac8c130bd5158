package harness

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// RunScript runs a client script, with the settings as environment variables, and logs its output.
// The script must exit with status 0 and print a line with "ok " for what it checked.
//
// If the program of the command is missing, the test is skipped or, in the continuous integration,
// fails.
func RunScript(t *testing.T, command []string, settings map[string]string) {
	t.Helper()
	if _, err := exec.LookPath(command[0]); err != nil {
		testutil.Missing(t, command[0])
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = os.Environ()
	for k, v := range settings {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	out, err := cmd.CombinedOutput()
	t.Logf("%s\n%s", strings.Join(command, " "), out)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), "ok ") {
		t.Fatal("the script checked nothing")
	}
}
