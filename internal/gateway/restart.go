package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"syscall"
	"time"

	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/process"
)

// Restart tells the gateway that holds the state directory to hand over, waits until its successor
// is ready, and prints what has changed to out. token is a token of the file's admin_auth. It is
// empty if there is none. The error says why the old process goes on.
func Restart(ctx context.Context, c *config.Config, token string, out io.Writer) error {
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
	case claimed.PID == 0: // a signal to process 0 would reach the caller's own group
		return claimed
	}
	admin := adminClient{c.Admin, token}
	before, err := admin.process(ctx)
	if err != nil {
		return err
	}
	if err := syscall.Kill(claimed.PID, handOverSignal); err != nil {
		return fmt.Errorf("signal to the gateway with pid %d: %w", claimed.PID, err)
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		now, err := admin.process(ctx)
		switch {
		case err != nil: // the listener changes hands
		case now.Upgrade.At.After(before.Upgrade.At):
			return fmt.Errorf("the new process did not take over, %s goes on: %s", before, now.Upgrade.Failed)
		case now.Started.After(before.Started) && admin.ready(ctx):
			return now.report(out, before)
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
	// address is what it listens on, host:port. token is empty if there is none.
	address, token string
}

// runningProcess is what the admin API says of the process that serves the gateway.
type runningProcess struct {
	Version string    `json:"version"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	Envoy   struct {
		PID     int  `json:"pid"`
		Adopted bool `json:"adopted"`
	} `json:"envoy"`
	Upgrade struct {
		Failed       string    `json:"failed"`
		At           time.Time `json:"failed_at"`
		Predecessors []struct {
			PID      int    `json:"pid"`
			Version  string `json:"version"`
			Requests int    `json:"requests"`
		} `json:"predecessors"`
	} `json:"upgrade"`
}

// String names the process to an operator.
func (p runningProcess) String() string { return fmt.Sprintf("%s (pid %d)", p.Version, p.PID) }

// report prints what a restart has changed.
func (p runningProcess) report(out io.Writer, before runningProcess) error {
	text := fmt.Sprintf("restarted: %s → %s\n", before, p)
	if p.Envoy.Adopted {
		text += fmt.Sprintf("adopted: Envoy (pid %d)\n", p.Envoy.PID)
	}
	for _, old := range p.Upgrade.Predecessors {
		text += fmt.Sprintf("carried on: %d requests by %s (pid %d), until they end\n", old.Requests, old.Version, old.PID)
	}
	_, err := io.WriteString(out, text)
	return err
}

// process asks which process serves the gateway.
func (c adminClient) process(ctx context.Context) (p runningProcess, err error) {
	resp, err := c.do(ctx, http.MethodGet, "/api/v1/status", nil)
	if err != nil {
		return p, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return p, fmt.Errorf("the admin listener at %s answered %s: give a token of admin_auth by --admin-token-file or SLUICE_ADMIN_TOKEN",
			c.address, resp.Status)
	}
	return p, json.NewDecoder(resp.Body).Decode(&p)
}

// ready asks whether the gateway can serve requests.
func (c adminClient) ready(ctx context.Context) bool {
	resp, err := c.do(ctx, http.MethodGet, "/readyz", nil)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// do sends a request. A body is JSON; nil: there is none.
func (c adminClient) do(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+dialAddress(c.address)+path, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	return http.DefaultClient.Do(req)
}
