package harness

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Terminal is a pseudo-terminal of 100 columns with a program in it. OpenTerminal makes one.
type Terminal struct {
	master *os.File

	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

// OpenTerminal starts the command in a terminal of its own. Its stdin, stdout and stderr are the
// terminal, and a Ctrl-C reaches it as a signal.
func OpenTerminal(t *testing.T, cmd *exec.Cmd) *Terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 100})
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	terminal := &Terminal{master: master}
	go terminal.read()
	return terminal
}

// read collects what the program prints until the last process has closed the terminal.
func (t *Terminal) read() {
	part := make([]byte, 4096)
	for {
		n, err := t.master.Read(part)
		t.mu.Lock()
		t.text.Write(part[:n])
		t.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// Text returns what the program has printed so far, with its control sequences.
func (t *Terminal) Text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

// Press types keys, such as "\x03" for Ctrl-C.
func (t *Terminal) Press(test *testing.T, keys string) {
	test.Helper()
	if _, err := t.master.WriteString(keys); err != nil {
		test.Fatal(err)
	}
}
