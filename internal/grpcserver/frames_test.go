package grpcserver

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// dialFrames returns the frames of a connection that has begun with these settings.
func dialFrames(t *testing.T, path string, settings ...http2.Setting) *http2.Framer {
	t.Helper()
	socket, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	_ = socket.SetDeadline(time.Now().Add(testutil.Patience))
	f := http2.NewFramer(socket, socket)
	f.AllowIllegalWrites = true
	_, err = io.WriteString(socket, preface)
	if err := errors.Join(err, f.WriteSettings(settings...)); err != nil {
		t.Fatal(err)
	}
	return f
}

// await returns the next frame of a type.
func await[F http2.Frame](t *testing.T, f *http2.Framer) F {
	t.Helper()
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if frame, ok := frame.(F); ok {
			return frame
		}
	}
}

// echoBlock returns the headers of a request to echoMethod.
func echoBlock() []byte {
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", echoMethod}, {"content-type", "application/grpc"}} {
		_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	return block.Bytes()
}

// Frames may have padding and a priority, and headers may come in parts. The first headers to a
// client without a table say that they use none.
func TestB12_PaddedAndSplitFrames(t *testing.T) {
	t.Parallel()
	_, path := serve(t, openEcho)
	f := dialFrames(t, path, http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0})
	block, message := echoBlock(), endMessage(append(make([]byte, prefixSize), "hello"...), 0)
	if err := errors.Join(
		f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:1], PadLength: 7, Priority: http2.PriorityParam{Weight: 3}}),
		f.WriteContinuation(1, false, block[1:2]), f.WriteContinuation(1, true, block[2:]),
		f.WriteDataPadded(1, false, message[:3], make([]byte, 200)), f.WriteDataPadded(1, false, nil, make([]byte, 1)),
		f.WriteDataPadded(1, true, message[3:], make([]byte, 9)),
	); err != nil {
		t.Fatal(err)
	}
	if first := await[*http2.HeadersFrame](t, f); first.StreamEnded() || first.HeaderBlockFragment()[0] != 0x20 {
		t.Errorf("the response begins with %x", first.HeaderBlockFragment())
	}
	if data := await[*http2.DataFrame](t, f); !bytes.Equal(data.Data(), message) {
		t.Errorf("got %q; want %q", data.Data(), message)
	}
	if last := await[*http2.HeadersFrame](t, f); !last.StreamEnded() || last.HeaderBlockFragment()[0] == 0x20 {
		t.Errorf("the response ends with %x", last.HeaderBlockFragment())
	}
}

// A client that breaks the protocol is told how, and loses its connection with all streams.
func TestB12_BrokenFrames(t *testing.T) {
	t.Parallel()
	const end = http2.FlagHeadersEndHeaders
	block := echoBlock()
	for name, test := range map[string]struct {
		write func(f *http2.Framer) error
		code  http2.ErrCode
	}{
		"DATA of the connection":    {raw(http2.FrameData, 0, 0, 1), http2.ErrCodeProtocol},
		"DATA of a stream to come":  {raw(http2.FrameData, 0, 3, 1), http2.ErrCodeProtocol},
		"padding without DATA":      {raw(http2.FrameData, http2.FlagDataPadded, 1), http2.ErrCodeProtocol},
		"padding over DATA":         {raw(http2.FrameData, http2.FlagDataPadded, 1, 1), http2.ErrCodeProtocol},
		"padding without HEADERS":   {raw(http2.FrameHeaders, end|http2.FlagHeadersPadded, 3), http2.ErrCodeProtocol},
		"padding over HEADERS":      {raw(http2.FrameHeaders, end|http2.FlagHeadersPadded, 3, 1), http2.ErrCodeProtocol},
		"priority over HEADERS":     {raw(http2.FrameHeaders, end|http2.FlagHeadersPriority, 3, 1, 2, 3, 4), http2.ErrCodeProtocol},
		"headers that are none":     {raw(http2.FrameHeaders, end, 3, 0x80), http2.ErrCodeCompression},
		"headers that break off":    {raw(http2.FrameHeaders, end, 3, 0x40), http2.ErrCodeCompression},
		"a stream of the server":    {raw(http2.FrameHeaders, end, 2, block...), http2.ErrCodeProtocol},
		"headers twice":             {raw(http2.FrameHeaders, end, 1, block...), http2.ErrCodeProtocol},
		"CONTINUATION of nothing":   {raw(http2.FrameContinuation, end, 1), http2.ErrCodeProtocol},
		"RST_STREAM of 3 bytes":     {raw(http2.FrameRSTStream, 0, 1, 0, 0, 0), http2.ErrCodeProtocol},
		"RST_STREAM of no stream":   {raw(http2.FrameRSTStream, 0, 0, 0, 0, 0, 0), http2.ErrCodeProtocol},
		"SETTINGS of a stream":      {raw(http2.FrameSettings, 0, 1), http2.ErrCodeProtocol},
		"SETTINGS of 5 bytes":       {raw(http2.FrameSettings, 0, 0, 0, 1, 0, 0, 0), http2.ErrCodeProtocol},
		"PING of a stream":          {raw(http2.FramePing, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8), http2.ErrCodeFrameSize},
		"PING of 7 bytes":           {raw(http2.FramePing, 0, 0, 1, 2, 3, 4, 5, 6, 7), http2.ErrCodeFrameSize},
		"WINDOW_UPDATE of 3 bytes":  {raw(http2.FrameWindowUpdate, 0, 1, 0, 0, 1), http2.ErrCodeFrameSize},
		"WINDOW_UPDATE of nothing":  {raw(http2.FrameWindowUpdate, 0, 1, 0, 0, 0, 0), http2.ErrCodeProtocol},
		"too large a window":        {raw(http2.FrameWindowUpdate, 0, 0, 0x7f, 0xff, 0xff, 0xff), http2.ErrCodeFlowControl},
		"too large a stream":        {raw(http2.FrameWindowUpdate, 0, 1, 0x7f, 0xff, 0xff, 0xff), http2.ErrCodeFlowControl},
		"PUSH_PROMISE":              {raw(http2.FramePushPromise, 0, 1, 0, 0, 0, 2), http2.ErrCodeProtocol},
		"a control frame too large": {raw(http2.FramePriority, 0, 1, make([]byte, maxControlFrame+1)...), http2.ErrCodeFrameSize},
		"frames too small":          {setting(http2.SettingMaxFrameSize, minFrame-1), http2.ErrCodeProtocol},
		"frames too large":          {setting(http2.SettingMaxFrameSize, 1<<24), http2.ErrCodeProtocol},
		"too large first windows":   {setting(http2.SettingInitialWindowSize, maxWindow+1), http2.ErrCodeFlowControl},
		"PING within headers": {func(f *http2.Framer) error {
			return errors.Join(raw(http2.FrameHeaders, 0, 3, block...)(f), f.WritePing(false, [8]byte{}))
		}, http2.ErrCodeProtocol},
		"headers of another stream": {func(f *http2.Framer) error {
			return errors.Join(raw(http2.FrameHeaders, 0, 3, block...)(f), f.WriteContinuation(5, true, nil))
		}, http2.ErrCodeProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ended := make(chan struct{})
			_, path := serve(t, func(s *Stream, _ func(string) string) Handler { return &echo{stream: s, ended: ended} })
			f := dialFrames(t, path)
			if err := errors.Join(raw(http2.FrameHeaders, end, 1, block...)(f), test.write(f)); err != nil {
				t.Fatal(err)
			}
			if frame := await[*http2.GoAwayFrame](t, f); frame.ErrCode != test.code {
				t.Errorf("told %v; want %v", frame.ErrCode, test.code)
			}
			if frame, err := f.ReadFrame(); err == nil {
				t.Errorf("%v follows", frame)
			}
			<-ended
		})
	}
}

// raw writes a frame as it is.
func raw(kind http2.FrameType, flags http2.Flags, stream uint32, content ...byte) func(*http2.Framer) error {
	return func(f *http2.Framer) error { return f.WriteRawFrame(kind, flags, stream, content) }
}

// setting writes SETTINGS with one value.
func setting(id http2.SettingID, value uint32) func(*http2.Framer) error {
	return func(f *http2.Framer) error { return f.WriteSettings(http2.Setting{ID: id, Val: value}) }
}
