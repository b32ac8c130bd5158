package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"testing"
)

// A reload that has succeeded says so, and which fields wait for a restart.
func TestO8_ReloadSaysThatTheFileIsInForce(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]string{
		`{"config":{"path":"sluice.yaml"}}`:                   "sluice.yaml is in force.\n",
		`{"config":{"needs_restart":["listen","log_level"]}}`: "The file is in force.\nA restart is needed for: listen, log_level\n",
		"": "The file is in force.\n",
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path == "/api/v1/reload" && r.Method == http.MethodPost:
				_, _ = w.Write([]byte(`{"reloaded":true}`))
			case status != "":
				_, _ = w.Write([]byte(status))
			default:
				w.WriteHeader(http.StatusForbidden)
			}
		}))
		c, out := newReloadCommand(), new(bytes.Buffer)
		c.SetArgs([]string{"--admin", server.URL})
		c.SetOut(out)
		if err := c.Execute(); err != nil || out.String() != want {
			t.Errorf("%s: %v, %q, want %q", status, err, out, want)
		}
		server.Close()
	}
}
