package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/process"
)

// handOverSignal makes a gateway leave its Envoy and replicas running and start itself anew from the binary that is there now.
const handOverSignal = syscall.SIGUSR2

// stateDirVariable carries the temporary state directory of a run without a file over a hand-over.
const stateDirVariable = "SLUICE_STATE_DIR"

// await blocks until the gateway is to end, and says whether it is to hand over. SIGHUP reads the file again.
func (g *gateway) await(ctx, parts context.Context, signals <-chan os.Signal) (handOver bool) {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-parts.Done():
			g.log.Error("a part has ended, so Sluice ends", zap.Error(context.Cause(parts)))
			return false
		case s := <-signals:
			if s == handOverSignal {
				g.log.Info("handing over")
				return true
			}
			g.log.Info("reading the configuration again")
			if err := g.watcher.Reload(); err != nil {
				g.log.Error("the configuration was not taken over", zap.Error(err))
			}
		}
	}
}

// replaceSelf starts this program anew in this very process: same pid, new binary if there is one. It returns only when that
// fails. The claim of the state directory goes with the old program's files, in the moment of the exec.
func (g *gateway) replaceSelf() error {
	if g.settings.temporary {
		return execAnew(stateDirVariable + "=" + g.dir.Path())
	}
	return execAnew()
}

// execAnew starts this program anew in this very process, with more in its environment. It returns only when that fails.
func execAnew(more ...string) error {
	path, err := exec.LookPath(os.Args[0])
	if err != nil {
		return fmt.Errorf("hand over: %w", err)
	}
	return fmt.Errorf("hand over: %w", syscall.Exec(path, os.Args, append(os.Environ(), more...)))
}

// hurry ends all processes of the directory when a second signal comes before ctx ends; stop takes that back.
func hurry(ctx context.Context, dir *process.Dir, log *zap.Logger) (stop func()) {
	second, calm := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	never := context.AfterFunc(second, func() {
		if ctx.Err() == nil {
			log.Warn("told to stop again: ending what still runs")
			_ = dir.EndAll(ctx, time.Second) // what could not be ended is told by who drains
		}
	})
	return func() { never(); calm() }
}

func newRestartCommand() *cobra.Command {
	var file string
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "restart -c FILE",
		Short: "Restart a running gateway, for an upgrade: its Envoy, replicas and streams go on",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.Load(file)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return restart(ctx, c)
		},
	}
	c.Flags().StringVarP(&file, "config", "c", "", "the configuration file of the running gateway")
	c.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait until it is ready again")
	_ = c.MarkFlagRequired("config")
	return c
}

// restart signals the gateway that holds the state directory and waits until its successor is ready.
func restart(ctx context.Context, c *config.Config) error {
	dir, err := process.Open(c.StateDir, nil)
	if err != nil {
		return err
	}
	var claimed *process.ClaimedError
	switch err := dir.Claim(ctx); {
	case err == nil:
		return errors.Join(errors.New("no gateway runs on "+c.StateDir), dir.Release())
	case !errors.As(err, &claimed):
		return err
	}
	before, err := startedAt(ctx, c.Admin)
	if err != nil {
		return err
	}
	if err := syscall.Kill(claimed.PID, handOverSignal); err != nil {
		return fmt.Errorf("gateway with pid %d: %w", claimed.PID, err)
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if now, err := startedAt(ctx, c.Admin); err == nil && now.After(before) && ready(ctx, c.Admin) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("the restarted gateway is not ready yet")
		case <-tick.C:
		}
	}
}

func startedAt(ctx context.Context, admin string) (time.Time, error) {
	var status struct {
		Started time.Time `json:"started"`
	}
	resp, err := adminGet(ctx, admin, "/api/v1/status")
	if err != nil {
		return time.Time{}, err
	}
	defer resp.Body.Close()
	return status.Started, json.NewDecoder(resp.Body).Decode(&status)
}

func ready(ctx context.Context, admin string) bool {
	resp, err := adminGet(ctx, admin, "/readyz")
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

func adminGet(ctx context.Context, admin, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+path, nil)
	if err != nil {
		return nil, err
	}
	return http.DefaultClient.Do(req)
}
