package testutil

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// TestWrittenProgramsRun checks that programs run at once, although others are written and started
// at the same time.
func TestWrittenProgramsRun(t *testing.T) {
	dir := t.TempDir()
	var running sync.WaitGroup
	for worker := range 16 {
		running.Go(func() {
			for i := range 12 {
				program := filepath.Join(dir, fmt.Sprint(worker, "-", i))
				WriteProgram(t, program, "#!/bin/sh\nexit 0\n")
				if err := exec.Command(program).Run(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	running.Wait()
}
