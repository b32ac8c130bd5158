package envoy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/process"
)

// What the record of an Envoy says besides the command.
const (
	metaVersion   = "version"
	metaBootstrap = "bootstrap"
	metaAdmin     = "admin"
)

const validateTimeout = 30 * time.Second

// launch is all that makes an Envoy what it is. An Envoy that was launched otherwise is not adopted.
type launch struct {
	command []string
	file    string // of the bootstrap
	version string
	digest  string // of the bootstrap and the arguments
	admin   string // socket
}

// prepare writes the bootstrap into the state directory. An Envoy that runs has read it long ago.
func (e *Envoy) prepare(ctx context.Context) (launch, error) {
	version, err := Version(ctx, e.cfg.Binary)
	if err != nil {
		return launch{}, err
	}
	bootstrap, err := Bootstrap(e.cfg.Bootstrap)
	if err != nil {
		return launch{}, err
	}
	file := filepath.Join(e.cfg.Dir.Path(), "envoy.json")
	if err := writeFile(file, bootstrap); err != nil {
		return launch{}, fmt.Errorf("envoy bootstrap: %w", err)
	}
	args := e.arguments(file)
	sum := sha256.New()
	sum.Write(bootstrap)
	sum.Write([]byte(strings.Join(args, "\x00")))
	return launch{
		command: append([]string{e.cfg.Binary}, args...),
		file:    file,
		version: version,
		digest:  hex.EncodeToString(sum.Sum(nil)),
		admin:   e.cfg.Bootstrap.AdminSocket,
	}, nil
}

// arguments switches hot restart off: Envoys that have it on, on one host, fight over one name for their shared memory.
func (e *Envoy) arguments(file string) []string {
	args := []string{
		"--config-path", file,
		"--disable-hot-restart",
		"--drain-time-s", strconv.FormatInt(int64((e.cfg.DrainTime+time.Second-1)/time.Second), 10),
		"--log-level", "warn",
	}
	if e.cfg.Concurrency > 0 {
		args = append(args, "--concurrency", strconv.Itoa(e.cfg.Concurrency))
	}
	return args
}

func (l launch) meta() map[string]string {
	return map[string]string{metaVersion: l.version, metaBootstrap: l.digest, metaAdmin: l.admin}
}

// differs tells in what a recorded Envoy is another one; empty when it is the same.
func (l launch) differs(meta map[string]string) string {
	switch {
	case meta[metaVersion] != l.version:
		return fmt.Sprintf("it is Envoy %s, not %s", meta[metaVersion], l.version)
	case meta[metaBootstrap] != l.digest:
		return "it was started with another bootstrap or other flags"
	}
	return ""
}

// validate lets Envoy itself read the bootstrap.
func (l launch) validate(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, validateTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, l.command[0], "--mode", "validate", "--config-path", l.file,
		"--disable-hot-restart", "--log-level", "error")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("envoy --mode validate: %w", ctx.Err())
	case errors.As(err, &exit):
		return fmt.Errorf("envoy %s refuses its bootstrap %s: %s", l.version, l.file, complaint(out))
	}
	return fmt.Errorf("envoy --mode validate: %w", err)
}

// complaint is what Envoy has to say, on one line and without the marks of its log: its error lines, or else its last line.
func complaint(out []byte) string {
	var said []string
	last := ""
	for line := range bytes.Lines(out) {
		text := strings.TrimSpace(string(line))
		if text == "" {
			continue
		}
		last = text
		for _, level := range []string{"[critical]", "[error]"} {
			if _, after, ok := strings.Cut(text, level); ok {
				said = append(said, afterMarks(after))
			}
		}
	}
	if len(said) == 0 {
		return last
	}
	return strings.Join(said, "; ")
}

// afterMarks cuts the bracketed logger name and source line off.
func afterMarks(s string) string {
	for s = strings.TrimSpace(s); strings.HasPrefix(s, "["); s = strings.TrimSpace(s) {
		_, after, ok := strings.Cut(s, "]")
		if !ok {
			break
		}
		s = after
	}
	return s
}

// adopt takes over the Envoy that the state directory has, if it is what we would start. One that is not is drained and
// ended, and adopt reports false.
func (e *Envoy) adopt(ctx context.Context, l launch) (bool, error) {
	p, ok := e.cfg.Dir.Adopt(RecordName)
	if !ok {
		return false, nil
	}
	meta := p.Record().Meta
	old := Admin{Socket: meta[metaAdmin]}
	why := l.differs(meta)
	if state, err := old.ServerState(ctx); why == "" && err == nil && state == stateDraining {
		why = "it is draining, and that cannot be undone"
	}
	if why == "" {
		e.hold(p)
		e.log.Info("envoy adopted", zap.Int("pid", p.PID()), zap.String("version", l.version))
		return true, nil
	}
	e.log.Warn("the running envoy is replaced", zap.Int("pid", p.PID()), zap.String("why", why),
		zap.Duration("drain", e.cfg.ReplaceDrain))
	e.change(func(s *Status) { s.State, s.PID, s.Adopted, s.Reason = StateDraining, p.PID(), true, "replaced: "+why })
	drain(ctx, p, old, e.cfg.ReplaceDrain)
	if ctx.Err() != nil {
		return false, ctx.Err() // it goes on draining; whoever comes next replaces it
	}
	return false, p.Stop(ctx, stopGrace)
}

func (e *Envoy) hold(p *process.Process) {
	e.life.Lock()
	defer e.life.Unlock()
	e.proc = p
	e.change(func(s *Status) { s.State, s.PID, s.Adopted = StateStarting, p.PID(), true })
}

// writeFile replaces a file in one step.
func writeFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
