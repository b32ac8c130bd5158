package config

import (
	"strings"
	"testing"
)

func TestCORSRules(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"cors: {origins: [https://app.example.com/]}":                                "cors.origins[0]: must be the origin of a page as browsers send it",
		"cors: {origins: [https://App.example.com]}":                                 "cors.origins[0]: must be the origin of a page as browsers send it",
		"cors: {origins: [app.example.com]}":                                         "cors.origins[0]: must be the origin of a page as browsers send it",
		"cors: {origins: [https://*]}":                                               "cors.origins[0]: must be the origin of a page as browsers send it",
		"cors: {origins: [https://app.*.com]}":                                       "cors.origins[0]: must be the origin of a page as browsers send it",
		"cors: {origins: [https://a.example, 'null']}":                               "cors.origins[1]: must be the origin of a page as browsers send it",
		"cors: {origins: [https://a.example:443]}":                                   "cors.origins[0]: has the default port of https",
		"cors: {origins: [http://a.example:80]}":                                     "cors.origins[0]: has the default port of http",
		"cors: {origins: [https://a.example, https://b.example, https://a.example]}": "cors.origins[2]: the same origin is on line 1",
		"listen: 127.0.0.1:1\nauth: {mode: none}\ncors: {origins: ['*']}":            "cors.origins[0]: lets every page that a caller opens call without a key, because auth.mode is none",
	} {
		if faults := faultsOf(t, file); len(faults) != 1 || !strings.Contains(faults[0], want) {
			t.Errorf("%s\n%q, want %q", file, faults, want)
		}
	}
	for _, file := range []string{
		"cors: {origins: ['*']}", "cors: {origins: []}", "cors: {}",
		"cors: {origins: [https://a.example, 'https://*.a.example:8443', 'http://[::1]:3000', http://localhost:5173, 'vscode-webview://1a2b', tauri://localhost]}",
		"listen: 127.0.0.1:1\nauth: {mode: none}\ncors: {origins: [http://localhost:5173]}",
	} {
		if faults := faultsOf(t, file); len(faults) > 0 {
			t.Errorf("%s\n%q", file, faults)
		}
	}
}

func TestCORSAllows(t *testing.T) {
	t.Parallel()
	c := CORS{Origins: []string{"https://a.example", "https://*.b.example:8443"}}
	for page, want := range map[string]bool{
		"https://a.example": true, "https://c.b.example:8443": true, "https://d.c.b.example:8443": true,
		"": false, "null": false, "http://a.example": false, "https://a.example.evil": false, "https://a.example:8443": false,
		"https://b.example:8443": false, "https://.b.example:8443": false, "https://c.b.example": false,
		"https://evil/.b.example:8443": false, "https://evil#.b.example:8443": false, "https://user@c.b.example:8443": false, "https://evil:1.b.example:8443": false,
	} {
		if c.Allows(page) != want {
			t.Errorf("%q allowed: %v", page, !want)
		}
	}
	if !(CORS{Origins: []string{"*"}}).Allows("null") || (CORS{}).Allows("https://a.example") {
		t.Error("all, and none")
	}
}
