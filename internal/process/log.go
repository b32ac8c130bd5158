package process

import (
	"time"

	"go.uber.org/zap/zapcore"
)

// Logger receives the messages of a Dir and of the guard. A *zap.Logger is one. The package does
// not import zap itself, because zap imports net/http: the guard would then initialise much more
// than it needs.
type Logger interface {
	Log(level zapcore.Level, message string, fields ...zapcore.Field)
}

// levels gives a Logger a method for each level. A nil Logger discards messages.
type levels struct{ out Logger }

func (l levels) log(level zapcore.Level, message string, fields []zapcore.Field) {
	if l.out != nil {
		l.out.Log(level, message, fields...)
	}
}

func (l levels) Info(message string, fields ...zapcore.Field) {
	l.log(zapcore.InfoLevel, message, fields)
}

func (l levels) Warn(message string, fields ...zapcore.Field) {
	l.log(zapcore.WarnLevel, message, fields)
}

func (l levels) Error(message string, fields ...zapcore.Field) {
	l.log(zapcore.ErrorLevel, message, fields)
}

func errorField(err error) zapcore.Field {
	return zapcore.Field{Key: "error", Type: zapcore.ErrorType, Interface: err}
}

func textField(key, value string) zapcore.Field {
	return zapcore.Field{Key: key, Type: zapcore.StringType, String: value}
}

func countField(n int) zapcore.Field {
	return zapcore.Field{Key: "count", Type: zapcore.Int64Type, Integer: int64(n)}
}

func durationField(key string, d time.Duration) zapcore.Field {
	return zapcore.Field{Key: key, Type: zapcore.DurationType, Integer: int64(d)}
}
