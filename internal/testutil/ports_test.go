package testutil

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
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

// TestFreePortWhileProcessesStart: a process that starts has the sockets of this one until its
// program begins. That of isFree must not be among them.
func TestFreePortWhileProcessesStart(t *testing.T) {
	port, stop := FreePort(t), make(chan struct{})
	var starters sync.WaitGroup
	for range 4 {
		starters.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_ = exec.Command("true").Run() // that it starts matters
				}
			}
		})
	}
	for i := range 5000 {
		if !isFree(port) {
			t.Errorf("try %d: the port is in use", i)
			break
		}
	}
	close(stop)
	starters.Wait()
}
