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
// ready. token is a token of the file's admin_auth. It is empty if there is none.
func Restart(ctx context.Context, c *config.Config, token string) error {
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
	admin := adminClient{c.Admin, token}
	before, err := admin.startedAt(ctx)
	if err != nil {
		return err
	}
	if err := syscall.Kill(claimed.PID, handOverSignal); err != nil {
		return fmt.Errorf("signal to the gateway with pid %d: %w", claimed.PID, err)
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if now, err := admin.startedAt(ctx); err == nil && now.After(before) && admin.ready(ctx) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("the restarted gateway is not ready yet: see its log and /readyz of its admin listener")
		case <-tick.C:
		}
	}
}

// adminClient calls the admin listener.
type adminClient struct {
	// address is its host:port. token is empty if there is none.
	address, token string
}

// startedAt asks when the gateway's process started.
func (c adminClient) startedAt(ctx context.Context) (time.Time, error) {
	var status struct {
		Started time.Time `json:"started"`
	}
	resp, err := c.get(ctx, "/api/v1/status")
	if err != nil {
		return time.Time{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return time.Time{}, fmt.Errorf("the admin listener at %s answered %s: give a token of admin_auth by --admin-token-file or SLUICE_ADMIN_TOKEN",
			c.address, resp.Status)
	}
	return status.Started, json.NewDecoder(resp.Body).Decode(&status)
}

// ready asks whether the gateway can serve requests.
func (c adminClient) ready(ctx context.Context) bool {
	resp, err := c.get(ctx, "/readyz")
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// get sends a GET.
func (c adminClient) get(ctx context.Context, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.address+path, nil)
	if err != nil {
		return nil, err
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	return http.DefaultClient.Do(req)
}
