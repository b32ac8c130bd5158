package moderation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// maxHookAnswer bounds what is read of a hook's answer, in bytes.
const maxHookAnswer = 64 << 10

// hook is a Hook with its defaults.
type hook struct {
	Hook
	window, rule int
}

func newHook(rule *Rule, index int) *hook {
	h := &hook{*rule.Hook, rule.Window, index}
	if h.Timeout <= 0 {
		h.Timeout = defaultTimeout
	}
	if h.Every <= 0 {
		h.Every = defaultEvery
	}
	client := http.Client{}
	if h.Client != nil {
		client = *h.Client
	}
	// The text must only go to the address in the configuration.
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	h.Client = &client
	return h
}

// question is the body of a request to a hook.
type question struct {
	Model  string `json:"model,omitempty"`
	Text   string `json:"text"`
	Choice int    `json:"choice"`
	Final  bool   `json:"final"`
}

// ask reports whether the hook blocks the text. err says that the hook gave no answer.
func (h *hook) ask(ctx context.Context, q question) (blocked bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, h.Timeout)
	defer cancel()
	action, err := h.post(ctx, q)
	if err != nil {
		return !h.FailOpen, err
	}
	return action == "block", nil
}

// post sends one question. Its errors hold neither text nor the address.
func (h *hook) post(ctx context.Context, q question) (action string, err error) {
	body, err := json.Marshal(q)
	if err != nil {
		return "", errors.New("moderation hook: the question cannot be written")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL, bytes.NewReader(body))
	if err != nil {
		return "", errors.New("moderation hook: the address is not valid")
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := h.Client.Do(req)
	if err != nil {
		return "", fmt.Errorf("moderation hook: %w", withoutAddress(err))
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxHookAnswer))
	if err != nil {
		return "", fmt.Errorf("moderation hook: %w", withoutAddress(err))
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("moderation hook: status %d", resp.StatusCode)
	}
	var a struct {
		Action string `json:"action"`
	}
	if json.Unmarshal(answer, &a) != nil || a.Action != "allow" && a.Action != "block" {
		return "", errors.New("moderation hook: the answer says neither allow nor block")
	}
	return a.Action, nil
}

// withoutAddress removes from an error the address that net/http has put into it, which may hold a
// secret.
func withoutAddress(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}
