package gateway

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/carry"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// A new process does not take over with an Envoy that does not run. A Gateway that goes back keeps
// the Envoy that runs.
func TestX20_ABrokenEnvoyChangesNothing(t *testing.T) {
	t.Parallel()
	path, binary := t.TempDir(), filepath.Join(t.TempDir(), "envoy")
	testutil.WriteProgram(t, binary, "#!/bin/sh\nexit 1\n")
	c := parse(t, path, "")
	g, err := New(claimed(t, path), Options{Config: c, Envoy: binary, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	predecessor := &helloMessage{Process: carry.Process{PID: os.Getppid()}, Listeners: []string{c.Admin}}
	if err := g.checkTakeOver(t.Context(), predecessor); err == nil || !strings.Contains(err.Error(), binary+" --version") {
		t.Errorf("error %v: want that of the binary", err)
	}
	predecessor.PID = os.Getpid()
	if err := g.checkTakeOver(t.Context(), predecessor); err != nil {
		t.Error(err)
	}
}

// An address that the predecessor frees is not tried, whatever its host. A predecessor of an
// earlier release does not tell what it frees.
func TestX20_AddressesThatBecomeFreeAreNotTried(t *testing.T) {
	t.Parallel()
	path, address := t.TempDir(), takenAddress(t)
	c := parse(t, path, "control: {nodes: '"+address+"'}")
	g := newGateway(t, claimed(t, path), c)
	for name, step := range map[string]struct {
		frees  []string
		passes bool
	}{
		"another address": {[]string{"127.0.0.1:1"}, false}, "none": {[]string{}, false},
		"the same port": {[]string{"0.0.0.0:" + portOf(address)}, true}, "an earlier release": {nil, true},
	} {
		err := g.checkTakeOver(t.Context(), &helloMessage{Listeners: []string{c.Admin}, Frees: step.frees})
		if (err == nil) != step.passes {
			t.Errorf("%s: %v", name, err)
		}
	}
}
