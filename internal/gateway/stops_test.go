package gateway

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// timeout(1) sends its signal to the command and to the group of the command. Both are one stop,
// and a later signal is the second one.
func TestE4_SignalsAtOnceAreOneStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		signals, merged := make(chan os.Signal, 8), make(chan os.Signal, 8)
		go mergeStops(signals, merged)
		for i, want := range []int{1, 2} {
			signals <- syscall.SIGTERM
			time.Sleep(time.Millisecond)
			signals <- syscall.SIGINT
			synctest.Wait()
			if len(merged) != want {
				t.Errorf("after the signals of %d stops there are %d", i+1, len(merged))
			}
			time.Sleep(50 * time.Millisecond) // as a follower, at the least
		}
		close(signals)
	})
}

// A gateway whose log nobody reads any more goes on, and stops in order: otherwise its Envoy would
// keep the port until the guard ends it.
func TestE4_ALogThatNobodyReads(t *testing.T) {
	t.Parallel()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = reader.Close()
	defer writer.Close()
	logger := exec.Command(os.Args[0], "logger")
	logger.Stderr = writer
	if err := logger.Run(); err != nil {
		t.Error(err)
	}
}
