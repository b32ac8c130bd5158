package telemetry

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap/zapcore"
)

// textCore writes one short line of text for each entry, for people: the time of day, the level,
// the message, then the fields as name=value in their order.
type textCore struct {
	zapcore.LevelEnabler
	out    zapcore.WriteSyncer
	colour bool
	fields []zapcore.Field
}

func (c *textCore) With(fields []zapcore.Field) zapcore.Core {
	with := *c
	with.fields = slices.Concat(c.fields, fields) // a copy, because other loggers share the array of c.fields
	return &with
}

func (c *textCore) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return to.AddCore(e, c)
	}
	return to
}

func (c *textCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	var b strings.Builder
	b.WriteString(e.Time.Format(time.TimeOnly))
	b.WriteString("  " + c.level(e.Level) + "  ")
	if e.LoggerName != "" {
		b.WriteString(e.LoggerName + " ")
	}
	b.WriteString(e.Message)
	for _, f := range slices.Concat(c.fields, fields) {
		writeField(&b, f)
	}
	if e.Stack != "" {
		b.WriteString("\n" + e.Stack)
	}
	b.WriteByte('\n')
	_, err := c.out.Write([]byte(b.String()))
	return err
}

func (c *textCore) Sync() error { return c.out.Sync() }

func (c *textCore) level(l zapcore.Level) string {
	word, style := "info", ""
	switch {
	case l < zapcore.InfoLevel:
		word = "debug"
	case l == zapcore.WarnLevel:
		word, style = "warning", "33"
	case l > zapcore.WarnLevel:
		word, style = "error", "31"
	}
	if !c.colour || style == "" {
		return word
	}
	return "\x1b[" + style + "m" + word + "\x1b[0m"
}

// writeField writes name=value for each value that the field adds.
func writeField(b *strings.Builder, f zapcore.Field) {
	values := zapcore.NewMapObjectEncoder()
	f.AddTo(values)
	value, ok := values.Fields[f.Key]
	if !ok { // as with zap.Skip
		return
	}
	text := fmt.Sprint(value)
	if text == "" || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == '"' || r == '=' || !strconv.IsPrint(r) }) {
		text = strconv.Quote(text)
	}
	b.WriteString("  " + f.Key + "=" + text)
}
