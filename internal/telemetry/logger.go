package telemetry

import (
	"fmt"
	"io"
	"os"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Formats of the log.
const (
	// FormatJSON is one JSON object per line, for machines.
	FormatJSON = "json"
	// FormatConsole is one line of text, for people.
	FormatConsole = "console"
	// FormatAuto is FormatConsole on a terminal and FormatJSON elsewhere.
	FormatAuto = "auto"
)

// LoggerConfig says what NewLogger logs and where.
type LoggerConfig struct {
	// Level is debug, info, warn or error; empty means info.
	Level string
	// Format is FormatJSON, FormatConsole or FormatAuto; empty means FormatAuto.
	Format string
	// Terminal is the terminal that stderr is; nil means that it is none. Colour says that the
	// terminal shows colours.
	Terminal io.Writer
	Colour   bool
}

// NewLogger returns a logger that writes to stderr. It drops no lines. A level or a format that
// does not exist is an error that lists what is allowed. Lines of Go's standard log go to the
// logger from then on, as warnings: libraries write there what they can tell nobody.
func NewLogger(c LoggerConfig) (*zap.Logger, error) {
	out := zapcore.Lock(os.Stderr)
	if c.Terminal != nil {
		out = zapcore.Lock(zapcore.AddSync(c.Terminal))
	}
	log, err := newLogger(c, out)
	if err != nil {
		return nil, err
	}
	_, err = zap.RedirectStdLogAt(log, zapcore.WarnLevel)
	return log, err
}

// Check returns the error of NewLogger for a level or a format that does not exist.
func (c LoggerConfig) Check() error {
	_, err := newLogger(c, zapcore.AddSync(io.Discard))
	return err
}

func newLogger(c LoggerConfig, w zapcore.WriteSyncer) (*zap.Logger, error) {
	lowest, err := parseLevel(c.Level)
	if err != nil {
		return nil, err
	}
	core, err := newCore(c, lowest, w)
	if err != nil {
		return nil, err
	}
	// Stack traces belong to bugs; an operator's error is a sentence.
	return zap.New(core, zap.ErrorOutput(w), zap.AddStacktrace(zapcore.DPanicLevel)), nil
}

func parseLevel(level string) (zapcore.Level, error) {
	switch level {
	case "debug":
		return zapcore.DebugLevel, nil
	case "info", "":
		return zapcore.InfoLevel, nil
	case "warn":
		return zapcore.WarnLevel, nil
	case "error":
		return zapcore.ErrorLevel, nil
	}
	return 0, fmt.Errorf("log level %q: want debug, info, warn or error", level)
}

func newCore(c LoggerConfig, lowest zapcore.Level, w zapcore.WriteSyncer) (zapcore.Core, error) {
	switch {
	case c.Format == FormatConsole, c.Terminal != nil && (c.Format == FormatAuto || c.Format == ""):
		return &textCore{LevelEnabler: lowest, out: w, colour: c.Colour}, nil
	case c.Format == FormatJSON, c.Format == FormatAuto, c.Format == "":
		return zapcore.NewCore(jsonEncoder(), w, lowest), nil
	}
	return nil, fmt.Errorf("log format %q: want %s, %s or %s", c.Format, FormatAuto, FormatJSON, FormatConsole)
}

// timeLayout is the form of times in the log.
const timeLayout = "2006-01-02T15:04:05.000Z07:00"

func jsonEncoder() zapcore.Encoder {
	return zapcore.NewJSONEncoder(zapcore.EncoderConfig{
		TimeKey:        "time",
		LevelKey:       "level",
		NameKey:        "logger",
		MessageKey:     "msg",
		StacktraceKey:  "stack",
		EncodeDuration: zapcore.StringDurationEncoder,
		EncodeName:     zapcore.FullNameEncoder,
		EncodeTime:     zapcore.TimeEncoderOfLayout(timeLayout),
		EncodeLevel:    zapcore.LowercaseLevelEncoder,
	})
}
