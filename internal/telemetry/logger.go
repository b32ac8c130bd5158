package telemetry

import (
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Formats of the log.
const (
	// FormatJSON is one JSON object per line, for machines.
	FormatJSON = "json"
	// FormatConsole is one line of text, for people; coloured when stderr is a terminal and
	// NO_COLOR is not set.
	FormatConsole = "console"
)

// NewLogger returns a logger that writes to stderr. Level is debug, info, warn or error (empty:
// info), format is FormatJSON or FormatConsole (empty: FormatConsole). It drops no lines. Anything
// else is an error that lists what is allowed. Lines of Go's standard log go to the logger from
// then on, as warnings: libraries write there what they can tell nobody.
func NewLogger(level, format string) (*zap.Logger, error) {
	terminal := false
	if st, err := os.Stderr.Stat(); err == nil {
		terminal = st.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == ""
	}
	log, err := newLogger(level, format, terminal, zapcore.Lock(os.Stderr))
	if err != nil {
		return nil, err
	}
	_, err = zap.RedirectStdLogAt(log, zapcore.WarnLevel)
	return log, err
}

func newLogger(level, format string, colour bool, w zapcore.WriteSyncer) (*zap.Logger, error) {
	lowest, err := parseLevel(level)
	if err != nil {
		return nil, err
	}
	enc, err := newEncoder(format, colour)
	if err != nil {
		return nil, err
	}
	// Stack traces belong to bugs; an operator's error is a sentence.
	return zap.New(zapcore.NewCore(enc, w, lowest), zap.ErrorOutput(w), zap.AddStacktrace(zapcore.DPanicLevel)), nil
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

func newEncoder(format string, colour bool) (zapcore.Encoder, error) {
	cfg := zapcore.EncoderConfig{
		TimeKey:        "time",
		LevelKey:       "level",
		NameKey:        "logger",
		MessageKey:     "msg",
		StacktraceKey:  "stack",
		EncodeDuration: zapcore.StringDurationEncoder,
		EncodeName:     zapcore.FullNameEncoder,
	}
	switch format {
	case FormatJSON:
		cfg.EncodeTime = zapcore.TimeEncoderOfLayout("2006-01-02T15:04:05.000Z07:00")
		cfg.EncodeLevel = zapcore.LowercaseLevelEncoder
		return zapcore.NewJSONEncoder(cfg), nil
	case FormatConsole, "":
		cfg.EncodeTime = zapcore.TimeEncoderOfLayout(time.TimeOnly + ".000")
		cfg.EncodeLevel = zapcore.CapitalLevelEncoder
		if colour {
			cfg.EncodeLevel = zapcore.CapitalColorLevelEncoder
		}
		cfg.ConsoleSeparator = "  "
		return zapcore.NewConsoleEncoder(cfg), nil
	}
	return nil, fmt.Errorf("log format %q: want %s or %s", format, FormatJSON, FormatConsole)
}
