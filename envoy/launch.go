package envoy

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/process"
)

// The keys of the record of an Envoy, besides its command.
const (
	metaVersion   = "version"
	metaBootstrap = "bootstrap"
	metaAdmin     = "admin"
	metaBudget    = "budget"
	metaFilter    = "filter"
	// metaOrdinal is missing for an Envoy of a release that ran one Envoy at a time.
	metaOrdinal = "ordinal"
	// metaReplaced is when another Envoy replaced it, in the format of RFC 3339.
	metaReplaced = "replaced"
	// metaClosed is when it has closed its listener after that.
	metaClosed = "closed"
)

// validateTimeout bounds `envoy --mode validate`.
const validateTimeout = 30 * time.Second

// launchSpec is everything that determines an Envoy. An Envoy with another version or digest is not
// adopted.
type launchSpec struct {
	command []string
	// bootstrap is the content of the bootstrap.
	bootstrap []byte
	version   string
	// digest is a hash of the arguments and of the bootstrap without its budget, its inlets and its
	// ordinal. The budget depends on the machine, and a running Envoy keeps the budget that it was
	// started with. It also keeps its filter, and its inlets are part of that.
	digest string
	// ordinal is that of BootstrapConfig.at, and adminSocket the path of its admin interface.
	ordinal     int
	adminSocket string
	budget      Budget
	// filter is what Config.Filter has returned.
	filter string
}

// prepareLaunch returns what to run, without the version. It writes nothing.
func (e *Envoy) prepareLaunch() (launchSpec, error) {
	args := e.arguments(e.bootstrapFile())
	digest, err := launchDigest(e.cfg.Bootstrap, args)
	if err != nil {
		return launchSpec{}, err
	}
	l := launchSpec{
		command: slices.Concat([]string{e.cfg.Binary}, args, e.concurrency()),
		digest:  digest,
		ordinal: 1,
		budget:  e.cfg.Bootstrap.Budget,
	}
	return l, l.render(e.cfg.Bootstrap)
}

// render renders the bootstrap for the ordinal and the filter.
func (l *launchSpec) render(c BootstrapConfig) (err error) {
	c = c.at(l.ordinal)
	c.Inlets.filter = l.filter
	l.adminSocket = c.AdminSocket
	l.bootstrap, err = Bootstrap(c)
	return err
}

// launchDigest hashes the bootstrap without its budget and its inlets, and the arguments without
// the number of workers.
func launchDigest(c BootstrapConfig, args []string) (string, error) {
	c.Budget, c.PressureFile, c.Inlets = Budget{}, "", Inlets{}
	bootstrap, err := Bootstrap(c)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	sum.Write(bootstrap)
	sum.Write([]byte(strings.Join(args, "\x00")))
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// bootstrapFile is the path of the bootstrap.
func (e *Envoy) bootstrapFile() string { return filepath.Join(e.cfg.Dir.Path(), BootstrapFile) }

// arguments returns the arguments of Envoy. Hot restart is off, because Envoys with hot restart on
// the same machine would use the same shared memory.
func (e *Envoy) arguments(file string) []string {
	return []string{
		"--config-path", file,
		"--disable-hot-restart",
		"--drain-time-s", strconv.FormatInt(int64((e.cfg.DrainTime+time.Second-1)/time.Second), 10),
		"--log-level", "warn",
		// Envoy warns of each extension that is marked as work in progress, at each start.
		"--component-log-level", "misc:error",
	}
}

// concurrency returns the arguments that set the number of workers. They are not part of the
// digest, because Envoys of earlier releases have none.
func (e *Envoy) concurrency() []string {
	if e.cfg.Concurrency == 0 {
		return nil
	}
	return []string{concurrencyFlag, strconv.Itoa(e.cfg.Concurrency)}
}

// meta returns what the record of the Envoy stores.
func (l launchSpec) meta() map[string]string {
	return map[string]string{metaVersion: l.version, metaBootstrap: l.digest, metaAdmin: l.adminSocket, metaBudget: l.budget.text(), metaFilter: l.filter,
		metaOrdinal: strconv.Itoa(l.ordinal)}
}

// text returns the budget as the record of an Envoy stores it: its numbers between spaces.
func (b Budget) text() string { return fmt.Sprintf("%d %d %d", b.Connections, b.Requests, b.Memory) }

// parseBudget reads the text of a budget. A text that is no budget gives the zero Budget, which is
// no limit.
func parseBudget(text string) Budget {
	var b Budget
	if _, err := fmt.Sscanf(text, "%d %d %d", &b.Connections, &b.Requests, &b.Memory); err != nil {
		return Budget{}
	}
	return b
}

// difference says how the Envoy of a record differs from l. It is empty if they are the same.
func (l launchSpec) difference(r process.Record) string {
	workers, recorded := workersOf(l.command), workersOf(r.Command)
	switch {
	case r.Meta[metaVersion] != l.version:
		return fmt.Sprintf("its version is %s, not %s", r.Meta[metaVersion], l.version)
	case r.Meta[metaBootstrap] != l.digest:
		return "it was started with another bootstrap or other flags"
	case workers != "" && workers != recorded:
		return fmt.Sprintf("it has %s workers, not %s", cmp.Or(recorded, "its own number of"), workers)
	}
	return ""
}

// concurrencyFlag is the flag of Envoy that sets the number of its workers.
const concurrencyFlag = "--concurrency"

// workersOf returns the number of workers that a command sets, or "" if Envoy chooses it.
func workersOf(command []string) string {
	if i := slices.Index(command, concurrencyFlag); i >= 0 && i+1 < len(command) {
		return command[i+1]
	}
	return ""
}

// writeBootstrap writes the bootstrap into the state directory, unless it is there already. This is
// safe while an Envoy runs, since Envoy reads the file only at its start.
func (e *Envoy) writeBootstrap(l launchSpec) error {
	if found, err := os.ReadFile(e.bootstrapFile()); err == nil && bytes.Equal(found, l.bootstrap) {
		return nil
	}
	if err := e.cfg.Dir.WriteFile(BootstrapFile, l.bootstrap); err != nil {
		return fmt.Errorf("envoy bootstrap: %w", err)
	}
	return nil
}

// validate lets Envoy itself check the bootstrap that was written.
func (e *Envoy) validate(ctx context.Context, l launchSpec) error {
	refused, err := validate(ctx, l.command[0], e.bootstrapFile())
	if refused != "" {
		return fmt.Errorf("envoy %s refuses its bootstrap %s: %s", l.version, e.bootstrapFile(), refused)
	}
	return err
}

// validate lets an Envoy check a bootstrap. refused is why it refuses it, in its own words.
func validate(ctx context.Context, binary, file string) (refused string, err error) {
	ctx, cancel := context.WithTimeout(ctx, validateTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "--mode", "validate", "--config-path", file, "--disable-hot-restart", "--log-level", "error")
	cmd.Env = process.Environment()
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return "", nil
	case ctx.Err() != nil:
		return "", fmt.Errorf("envoy --mode validate: %w", ctx.Err())
	case errors.As(err, &exit):
		return validationErrors(out), nil
	}
	return "", fmt.Errorf("envoy --mode validate: %w", err)
}

// validationErrors returns the error lines of Envoy's output as one line without log prefixes. If
// there are none, it returns the last line.
func validationErrors(out []byte) string {
	var errorLines []string
	last := ""
	for line := range bytes.Lines(out) {
		text := strings.TrimSpace(string(line))
		if text == "" {
			continue
		}
		last = text
		for _, level := range []string{"[critical]", "[error]"} {
			if _, after, ok := strings.Cut(text, level); ok {
				errorLines = append(errorLines, trimLogPrefix(after))
			}
		}
	}
	if len(errorLines) == 0 {
		return last
	}
	return strings.Join(errorLines, "; ")
}

// trimLogPrefix removes the bracketed logger name and source line.
func trimLogPrefix(s string) string {
	for s = strings.TrimSpace(s); strings.HasPrefix(s, "["); s = strings.TrimSpace(s) {
		_, after, ok := strings.Cut(s, "]")
		if !ok {
			break
		}
		s = after
	}
	return s
}

// adopt takes over the Envoy of the state directory if its launchSpec is l. An Envoy that differs
// is retired: another one is to be started beside it, and adopt returns false. An Envoy that
// differs and whose successor could not be started, because its bootstrap cannot be written or is
// refused, is taken over too. If Stop was called before, the Envoy is left to it.
func (e *Envoy) adopt(ctx context.Context, l launchSpec) bool {
	p, ok := e.cfg.Dir.Adopt(RecordName)
	if !ok {
		return false
	}
	meta := p.Record().Meta
	reason := l.difference(p.Record())
	if running := meta[metaFilter]; reason == "" && running != "" && e.cfg.Keeps != nil && !e.cfg.Keeps(ctx, l.version, running) {
		reason = "its filter is that of another build of Sluice"
	}
	if state, err := adminOf(p.Record()).ServerState(ctx); reason == "" && err == nil && state == serverDraining {
		reason = "it is draining, which cannot be undone"
	}
	if reason == "" {
		e.setAdopted(p)
		e.log.Info("Envoy adopted", zap.Int("pid", p.PID()), zap.String("version", l.version))
		return true
	}
	if e.isStopped() {
		return true // Stop drains it already, or ends it
	}
	err := e.writeBootstrap(l)
	if err == nil {
		err = e.validate(ctx, l)
	}
	if err == nil {
		err = e.retire(p)
	}
	if errors.Is(err, errStopped) {
		return true
	}
	if err != nil {
		e.setAdopted(p)
		if ctx.Err() == nil { // else this gateway ends or hands over, and the next one replaces the Envoy
			e.log.Error("running Envoy kept, because another one cannot be started", zap.Int("pid", p.PID()),
				zap.String("difference", reason), zap.Error(err))
		}
		return true
	}
	e.log.Warn("running Envoy replaced", zap.Int("pid", p.PID()), zap.String("reason", reason),
		zap.Duration("timeout", e.cfg.PredecessorTimeout()))
	return false
}

// keep takes over the Envoy of the state directory whatever its launchSpec is, because the binary
// cannot be used. It returns false if there is none.
func (e *Envoy) keep(why error) bool {
	p, ok := e.cfg.Dir.Adopt(RecordName)
	if !ok {
		return false
	}
	e.setAdopted(p)
	e.updateStatus(func(s *Status) { s.Version = p.Record().Meta[metaVersion] })
	e.log.Error("running Envoy kept, because another one cannot be started", zap.Int("pid", p.PID()), zap.Error(why))
	return true
}

// setAdopted makes p the process of e.
func (e *Envoy) setAdopted(p *process.Process) {
	e.processMu.Lock()
	defer e.processMu.Unlock()
	e.proc = p
	e.updateStatus(func(s *Status) {
		s.State, s.PID, s.Adopted = StateStarting, p.PID(), true
		s.Budget = parseBudget(p.Record().Meta[metaBudget])
	})
}
