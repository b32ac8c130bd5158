package harness

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// TestProcessesWith checks that a process is found by an environment variable as long as it runs,
// and only by the whole value.
func TestProcessesWith(t *testing.T) {
	const name = "SLUICE_E2E_TEST_OF_PROCESSES"
	c := exec.Command("sleep", "60")
	c.Env = append(os.Environ(), name+"=one")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Process.Kill()
	Eventually(t, "the process is found", func() error {
		if found := processesWith(name + "=one"); len(found) != 1 || found[c.Process.Pid] == "" {
			return fmt.Errorf("found %v", found)
		}
		return nil
	})
	if found := processesWith(name + "=on"); len(found) != 0 {
		t.Errorf("found by a part of the value: %v", found)
	}
	c.Process.Kill()
	c.Wait()
	if found := processesWith(name + "=one"); len(found) != 0 {
		t.Errorf("found after its end: %v", found)
	}
}
