package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/sluice-gateway/sluice/internal/config"
)

// maxReloadAnswer is the size of the largest answer of the admin listener that is read, in bytes.
// The answer lists all faults of a file.
const maxReloadAnswer = 1 << 20

// Reload has the gateway that runs with the configuration read its file now. force puts a file in
// force that is held back. The error has the faults of the file, or says that no gateway answers.
// token is a token of the file's admin_auth. It is empty if there is none.
func Reload(ctx context.Context, c *config.Config, token string, force bool) error {
	body, err := json.Marshal(map[string]bool{"force": force})
	if err != nil {
		return err
	}
	resp, err := adminClient{c.Admin, token}.do(ctx, http.MethodPost, "/api/v1/reload", bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("no gateway answers at admin (%s): %w", c.Admin, err)
	}
	defer resp.Body.Close() //nolint:errcheck // the body was read
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxReloadAnswer))
	if resp.StatusCode == http.StatusOK || err != nil {
		return err
	}
	var answer struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(text, &answer) != nil || answer.Error.Message == "" {
		return fmt.Errorf("the admin listener at %s answered %s", c.Admin, resp.Status)
	}
	return errors.New(answer.Error.Message)
}
