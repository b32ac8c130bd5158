package gateway

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/internal/sim"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// TestMain lets the test binary stand in for the program that a gateway starts. It is the guard
// when it is called as "sluice guard" is, and the simulated engine when it is called as "sluice
// sim" is. As "holder" it is a gateway that dies when it is to hand over, and as "logger" one that
// logs a line and ends.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "guard":
			runGuard(os.Args[2:])
		case "sim":
			runEngine(os.Args[2:])
		case "holder":
			runHolder(os.Args[2])
		case "logger":
			catchStops()
			fmt.Fprintln(os.Stderr, "a line that nobody reads")
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

func runGuard(args []string) {
	flags := flag.NewFlagSet("guard", flag.ExitOnError)
	dir := flags.String("state-dir", "", "")
	grace := flags.Duration("grace", time.Minute, "")
	exitWith(flags.Parse(args))
	exitWith(process.RunGuard(context.Background(), *dir, *grace, zap.NewNop()))
	os.Exit(0)
}

// runEngine serves one model on the port that the arguments name. It ignores the other flags.
func runEngine(args []string) {
	model, port := "", ""
	for i, a := range args {
		name, value, joined := strings.Cut(a, "=")
		if !joined && i+1 < len(args) {
			value = args[i+1]
		}
		switch strings.TrimLeft(name, "-") {
		case "port":
			port = value
		case "model", "served-model-name":
			model = value
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:"+port)
	exitWith(err)
	exitWith(sim.New(sim.Config{Models: []string{model}, TokenInterval: time.Millisecond}).Run(context.Background(), l))
	os.Exit(0)
}

// runHolder claims a state directory, says so, and ends without a successor when it is told to hand
// over.
func runHolder(path string) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, handOverSignal)
	dir, err := process.Open(path, zap.NewNop())
	exitWith(err)
	exitWith(dir.Claim(context.Background()))
	fmt.Println("claimed")
	<-signals
	os.Exit(1)
}

func exitWith(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// parse reads a configuration that listens on loopback and keeps its state in dir.
func parse(t *testing.T, dir, text string) *config.Config {
	t.Helper()
	c, err := config.Parse("sluice.yaml", []byte(listeners(t)+"state_dir: "+dir+"\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// listeners are the lines of a file that name free addresses.
func listeners(t *testing.T) string {
	t.Helper()
	var free [2]string
	for i := range free {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		free[i] = l.Addr().String()
	}
	return fmt.Sprintf("listen: %s\nadmin: %s\n", free[0], free[1])
}

// claimed opens and claims a state directory for the time of the test.
func claimed(t *testing.T, path string) *process.Dir {
	t.Helper()
	dir, err := process.Open(path, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.Claim(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(dir.Release)
	return dir
}

// newGateway makes a gateway without an Envoy.
func newGateway(t *testing.T, dir *process.Dir, c *config.Config) *Gateway {
	t.Helper()
	g, err := New(dir, Options{Config: c, Version: "test", Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// eventually waits until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	testutil.Eventually(t, what, condition)
}

// runGateway runs a gateway in its state directory, which the test has claimed.
func runGateway(ctx context.Context, g *Gateway) error {
	g.signals, g.stops = catchSignals(), catchStops()
	return g.run(ctx, nil)
}
