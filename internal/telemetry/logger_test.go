package telemetry

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

func TestLoggerJSON(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, err := newLogger(LoggerConfig{Level: "warn", Format: FormatJSON}, zapcore.AddSync(&out))
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

// TestO3_LogForPeople: a terminal gets one short line of text, and everything else JSON.
func TestO3_LogForPeople(t *testing.T) {
	t.Parallel()
	for _, colour := range []bool{false, true} {
		var out bytes.Buffer
		log, err := newLogger(LoggerConfig{Terminal: &out, Colour: colour}, zapcore.AddSync(&out))
		if err != nil {
			t.Fatal(err)
		}
		log.Debug("not this")
		log.With(zap.String("model", "chat")).Named("xds").Warn("refused", zap.Duration("pause", time.Second),
			zap.Error(errors.New("no \x1b[31m\nroom")), zap.Skip())
		line := out.String()[len("15:04:05  "):]
		word := map[bool]string{false: "warning", true: "\x1b[33mwarning\x1b[0m"}[colour]
		if want := word + `  xds refused  model=chat  pause=1s  error="no \x1b[31m\nroom"` + "\n"; line != want {
			t.Errorf("got %q, want %q", line, want)
		}
	}
	for _, c := range []struct {
		format   string
		terminal io.Writer
		json     bool
	}{{"", nil, true}, {FormatAuto, nil, true}, {FormatAuto, io.Discard, false}, {FormatConsole, nil, false}, {FormatJSON, io.Discard, true}} {
		var out bytes.Buffer
		log, err := newLogger(LoggerConfig{Format: c.format, Terminal: c.terminal}, zapcore.AddSync(&out))
		if err != nil {
			t.Fatal(err)
		}
		if log.Info("listening"); json.Valid(out.Bytes()) != c.json {
			t.Errorf("%+v: %s", c, out.String())
		}
	}
}

func TestLoggerRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ level, format, want string }{
		{"loud", "json", "debug, info, warn or error"},
		{"info", "xml", "auto, json or console"},
	} {
		if _, err := NewLogger(LoggerConfig{Level: c.level, Format: c.format}); err == nil || !strings.Contains(err.Error(), c.want) {
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
	if _, err := NewLogger(LoggerConfig{}); err != nil {
		t.Fatal(err)
	}
	log.Print("http: something odd")
	var line struct{ Level, Msg string }
	text, err := os.ReadFile(file.Name())
	if err != nil || json.Unmarshal(text, &line) != nil || line.Level != "warn" || line.Msg != "http: something odd" {
		t.Errorf("%v: %s", err, text)
	}
}
