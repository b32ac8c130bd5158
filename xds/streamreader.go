package xds

import (
	_ "embed"
	"strings"

	lua "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
)

// streamReaderSource writes what it has read under headers.MetadataStream and headers.MetadataRead,
// as one text. The text has the number of events with a part of the answer and the bytes of the
// body so far. It has the times of the first and the last of these events in microseconds since
// 1970. Then it has 1 if the stream has its end marker, the finish reason or a dash, and the gaps
// between the events as class:count,class:count. Package telemetry reads the text.
//
//go:embed streamreader.lua
var streamReaderSource string

// streamReader reads a response while it passes, and neither changes nor delays it. It costs about
// as much as half of what Envoy needs for an event without it (docs/performance.md). So ext_proc
// asks for it on a sample of the responses only.
func streamReader() *lua.Lua {
	return &lua.Lua{DefaultSourceCode: inline(withoutComments(streamReaderSource))}
}

// withoutComments returns a program in Lua without the lines that are comments. Envoy needs none,
// and another comment would be another listener.
func withoutComments(source string) string {
	var code strings.Builder
	for line := range strings.Lines(source) {
		if !strings.HasPrefix(strings.TrimSpace(line), "--") {
			code.WriteString(line)
		}
	}
	return code.String()
}
