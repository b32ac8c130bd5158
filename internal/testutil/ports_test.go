package testutil

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// TestFreePortIsOfOneProcess: another process that counts from the same base gets other ports.
func TestFreePortIsOfOneProcess(t *testing.T) {
	if own := os.Getenv("SLUICE_TEST_PORT"); own != "" {
		var port int
		if _, err := fmt.Sscan(own, &port); err != nil {
			t.Fatal(err)
		}
		if reserve(port) {
			t.Errorf("port %d has two owners", port)
		}
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), fmt.Sprint("SLUICE_TEST_PORT=", FreePort(t)))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
