package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"syscall"
	"time"

	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/process"
)

// Restart signals the gateway that holds the state directory and waits until its successor is
// ready.
func Restart(ctx context.Context, c *config.Config) error {
	dir, err := process.Open(c.StateDir, nil)
	if err != nil {
		return err
	}
	var claimed *process.ClaimedError
	switch err := dir.Claim(ctx); {
	case err == nil:
		return errors.Join(errors.New("no gateway runs on the state directory "+c.StateDir), dir.Release())
	case !errors.As(err, &claimed):
		return err
	}
	before, err := startedAt(ctx, c.Admin)
	if err != nil {
		return err
	}
	if err := syscall.Kill(claimed.PID, handOverSignal); err != nil {
		return fmt.Errorf("signal to the gateway with pid %d: %w", claimed.PID, err)
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if now, err := startedAt(ctx, c.Admin); err == nil && now.After(before) && ready(ctx, c.Admin) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("the restarted gateway is not ready yet: see its log and /readyz of its admin listener")
		case <-tick.C:
		}
	}
}

// startedAt asks the admin listener when the gateway's process started.
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

// ready asks the admin listener whether the gateway can serve requests.
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
