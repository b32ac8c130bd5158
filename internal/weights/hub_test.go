package weights

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestU19_ALimitedRateIsWaitedFor: hubs and the servers behind them say in several ways how long a
// client shall wait.
func TestU19_ALimitedRateIsWaitedFor(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		retryAfter, rateLimit string
		want                  time.Duration
	}{
		{"", "", 0},
		{"7", "", 7 * time.Second},
		{"7", `"api";r=0;t=55`, 7 * time.Second},
		{"-7", "", 0},
		{"soon", "", 0},
		{"99999999999", "", maxRetryAfter},
		{now.Add(time.Minute).Format(http.TimeFormat), "", time.Minute},
		{now.Add(-time.Minute).Format(http.TimeFormat), "", 0},
		{now.Add(time.Hour).Format(http.TimeFormat), "", maxRetryAfter},
		{"", `"api";r=0;t=55`, 55 * time.Second},
		{"", `"resolvers"; r=0; t=280`, 280 * time.Second},
		{"", `"api";r=0`, 0},
	} {
		h := http.Header{}
		h.Set("Retry-After", tt.retryAfter)
		h.Set("RateLimit", tt.rateLimit)
		if got := retryAfter(h, now); got != tt.want {
			t.Errorf("Retry-After: %s, RateLimit: %s: %v, want %v", tt.retryAfter, tt.rateLimit, got, tt.want)
		}
	}
}

// TestU19_PatienceIsLimited: a person at a terminal is told at once that the hub wants a pause.
func TestU19_PatienceIsLimited(t *testing.T) {
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("RateLimit", `"api";r=0;t=120`)
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer hub.Close()
	f, began := Fetcher{Patience: 110 * time.Second}, time.Now()
	_, err := f.List(t.Context(), Source{Repository: "org/model", Endpoint: hub.URL})
	const want = "answers 429: too many requests; it wants a pause of 2m0s; with a token (token_env or HF_TOKEN) it may allow more"
	if err == nil || !strings.Contains(err.Error(), want) || time.Since(began) > time.Minute {
		t.Errorf("after %v: %v, want %q", time.Since(began), err, want)
	}
}

// TestU19_AMirrorWithAPassword: the name and the password in the address of a mirror are sent to
// the mirror and to no other server, and no error shows them.
func TestU19_AMirrorWithAPassword(t *testing.T) {
	var elsewhere atomic.Value
	storage := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		elsewhere.Store(r.Header.Get("Authorization"))
		w.WriteHeader(http.StatusForbidden)
	}))
	defer storage.Close()
	mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name, password, _ := r.BasicAuth(); name != "user" || password != "word" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		http.Redirect(w, r, storage.URL, http.StatusFound)
	}))
	defer mirror.Close()
	s := Source{Repository: "org/model", Endpoint: strings.Replace(mirror.URL, "://", "://user:word@", 1)}
	_, err := new(Fetcher).List(t.Context(), s)
	const want = "answers 403: the hub redirects there, and that server or a proxy before it refuses the request"
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "word@") || elsewhere.Load() != "" {
		t.Errorf("%v, want %q; the other server was sent %q", err, want, elsewhere.Load())
	}
	s.Token = "other" // which the mirror does not know
	if _, err = new(Fetcher).List(t.Context(), s); err == nil || !strings.Contains(err.Error(), "the token does not give access") {
		t.Errorf("with a token: %v", err)
	}
}
