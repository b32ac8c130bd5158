package jwks

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A provider may move its keys to another address, but not from https to http. There anybody on the
// way could put keys of his own in their place.
func TestO12_Redirects(t *testing.T) {
	var p provider
	p.publish(ecKey(t, "one"))
	plain := httptest.NewServer(&p)
	t.Cleanup(plain.Close)
	encrypted := httptest.NewTLSServer(&p)
	t.Cleanup(encrypted.Close)
	trusting := encrypted.Client().Transport
	before := http.DefaultTransport
	http.DefaultTransport = trusting
	t.Cleanup(func() { http.DefaultTransport = before })
	to := func(url string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, url, http.StatusFound) }
	}
	down := httptest.NewTLSServer(to(plain.URL))
	t.Cleanup(down.Close)
	up := httptest.NewServer(to(encrypted.URL))
	t.Cleanup(up.Close)
	across := httptest.NewServer(to(plain.URL))
	t.Cleanup(across.Close)
	for name, c := range map[string]struct{ url, want string }{
		"https to http": {down.URL, "is not https"}, "http to https": {up.URL, ""}, "http to http": {across.URL, ""},
	} {
		_, err := load(t.Context(), Config{URL: c.url})
		if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
