package config

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestO3_AccessLog: the sink of the access log with its defaults, and what does not fit together.
func TestO3_AccessLog(t *testing.T) {
	t.Parallel()
	standard := AccessLog{To: AccessLogAuto, MaxSize: 100 << 20, MaxFiles: 5, Sample: 1}
	with := func(change func(*AccessLog)) AccessLog {
		a := standard
		change(&a)
		return a
	}
	dir := t.TempDir()
	for text, want := range map[string]AccessLog{
		"":                        standard,
		"log_requests: true\n":    standard,
		"log_requests: false\n":   with(func(a *AccessLog) { a.To = AccessLogOff }),
		"access_log: {to: off}\n": with(func(a *AccessLog) { a.To = AccessLogOff }),
		"access_log: {to: file, path: logs/access.log, max_size: 1MiB, max_files: 0, sample: 0.1}\n": {To: AccessLogFile,
			Path: filepath.Join(dir, "logs/access.log"), MaxSize: 1 << 20, Sample: 0.1},
		"access_log: {to: otlp}\ntracing: {endpoint: \"http://c:4318\"}\n": with(func(a *AccessLog) { a.To, a.Endpoint = AccessLogOTLP, "http://c:4318" }),
	} {
		c, err := Parse(filepath.Join(dir, "sluice.yaml"), []byte("listen: 127.0.0.1:80\n"+text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if diff := cmp.Diff(want, c.AccessLog); diff != "" {
			t.Errorf("%s(-want +got)\n%s", text, diff)
		}
	}
	for text, want := range map[string]string{
		"access_log: {to: syslog}":                      `f:1: access_log.to: must be one of auto, off, stdout, stderr, file, otlp, is syslog`,
		"access_log: {to: file}":                        "f:1: access_log: to: file needs path, the file of the access log",
		"access_log: {path: a}":                         "f:1: access_log.path: is only for to: file, and to is auto",
		"access_log: {to: otlp}":                        "f:1: access_log: to: otlp needs endpoint, the URL of the collector, or tracing.endpoint",
		"access_log: {to: otlp, endpoint: c}":           "f:1: access_log.endpoint: must be a URL such as http://127.0.0.1:9000/path",
		"access_log: {endpoint: \"http://c\"}":          "f:1: access_log.endpoint: is only for to: otlp, and to is auto",
		"access_log: {sample: 2}":                       "f:1: access_log.sample: must be between 0 and 1, is 2",
		"log_requests: false\naccess_log: {to: stdout}": "f:1: log_requests: false is another name of access_log.to: off, and to is set too: remove one of them",
	} {
		_, err := Parse("f", []byte(text))
		if err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
