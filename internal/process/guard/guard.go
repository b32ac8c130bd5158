// Package guard is the command "sluice guard", which guards a state directory
// (process.RunGuard). The command cmd/sluice imports this package for its effect alone.
//
// The command runs while Go initialises the program's packages. Go initialises a package as soon as
// all that it imports is initialised, in the order of the import paths. This package imports little
// and its path is early in that order. So a guard runs before the libraries of Kubernetes, gRPC and
// Envoy fill their tables, and before the process has read their pages of the program.
package guard

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/sluice-gateway/sluice/internal/memory"
	"github.com/sluice-gateway/sluice/internal/process"
)

// Command is the first argument of a program that makes its process a guard.
const Command = "guard"

func init() { //nolint:gochecknoinits // see the package comment
	if len(os.Args) < 2 || os.Args[1] != Command {
		return
	}
	if err := run(os.Args[2:], os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "sluice:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// heapGrowth is how much the heap of a guard may grow between two collections, in percent. A guard
// allocates little, so collections are rare anyway.
const heapGrowth = 20

// run guards until the guard ends by itself, or until the process receives SIGTERM or SIGINT. out
// receives the log and the usage.
func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("sluice "+Command, flag.ContinueOnError)
	flags.SetOutput(out)
	dir := flags.String("state-dir", "", "the state `directory`")
	grace := flags.Duration("grace", time.Minute, "how long to wait for a gateway to claim the state directory")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	case *dir == "" || flags.NArg() > 0:
		return fmt.Errorf("%s needs --state-dir DIRECTORY and takes no other arguments", Command)
	}
	debug.SetGCPercent(heapGrowth)
	memory.UnmapProgram() // what the start of the program has used
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return process.RunGuard(ctx, *dir, *grace, newLogger(out))
}

// logger writes the lines of the gateway's log: one JSON object per line. Package telemetry has the
// same encoder, but imports too much for a guard.
type logger struct{ core zapcore.Core }

// Log implements process.Logger.
func (l logger) Log(level zapcore.Level, message string, fields ...zapcore.Field) {
	entry := zapcore.Entry{Level: level, Time: time.Now(), Message: message}
	if checked := l.core.Check(entry, nil); checked != nil {
		checked.Write(fields...)
	}
}

func newLogger(w io.Writer) logger {
	encoder := zapcore.NewJSONEncoder(zapcore.EncoderConfig{
		TimeKey:        "time",
		LevelKey:       "level",
		MessageKey:     "msg",
		EncodeDuration: zapcore.StringDurationEncoder,
		EncodeTime:     zapcore.TimeEncoderOfLayout("2006-01-02T15:04:05.000Z07:00"),
		EncodeLevel:    zapcore.LowercaseLevelEncoder,
	})
	return logger{zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), zapcore.InfoLevel)}
}
