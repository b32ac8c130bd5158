package telemetry

import (
	"bytes"
	"encoding/json"
	"log"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

func TestLoggerJSON(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, err := newLogger("warn", FormatJSON, false, zapcore.AddSync(&out))
	if err != nil {
		t.Fatal(err)
	}
	log.Info("not this")
	log.Named("xds").Error("refused", zap.String("type", "cluster"))
	var got map[string]any
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("want one JSON line, got %q: %v", out.String(), err)
	}
	if got["time"] == nil {
		t.Error("no time")
	}
	delete(got, "time")
	want := map[string]any{"level": "error", "logger": "xds", "msg": "refused", "type": "cluster"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestLoggerConsole(t *testing.T) {
	t.Parallel()
	for _, colour := range []bool{false, true} {
		var out bytes.Buffer
		log, err := newLogger("", "", colour, zapcore.AddSync(&out))
		if err != nil {
			t.Fatal(err)
		}
		log.Debug("not this")
		log.Info("listening", zap.String("on", "127.0.0.1:8080"))
		line := out.String()
		if strings.Count(line, "\n") != 1 || !strings.Contains(line, "listening") || !strings.Contains(line, "127.0.0.1:8080") {
			t.Errorf("got %q", line)
		}
		if got := strings.Contains(line, "\x1b["); got != colour {
			t.Errorf("colour %v, want %v: %q", got, colour, line)
		}
	}
}

func TestLoggerRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ level, format, want string }{
		{"loud", "json", "debug, info, warn or error"},
		{"info", "xml", "json or console"},
	} {
		if _, err := NewLogger(c.level, c.format); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("NewLogger(%q, %q): got %v, want an error that lists %q", c.level, c.format, err, c.want)
		}
	}
}

// What libraries write to Go's standard log is a line of the log as any other.
func TestR11_StandardLog(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	stderr, flags, writer := os.Stderr, log.Flags(), log.Writer()
	defer func() { os.Stderr = stderr; log.SetFlags(flags); log.SetOutput(writer) }()
	os.Stderr = file
	if _, err := NewLogger("", FormatJSON); err != nil {
		t.Fatal(err)
	}
	log.Print("http: something odd")
	var line struct{ Level, Msg string }
	text, err := os.ReadFile(file.Name())
	if err != nil || json.Unmarshal(text, &line) != nil || line.Level != "warn" || line.Msg != "http: something odd" {
		t.Errorf("%v: %s", err, text)
	}
}
