package harness

import (
	"net/http"
	"testing"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"
)

// Message is a JSON message on a WebSocket, of the client or of the gateway.
type Message map[string]any

// Realtime opens a WebSocket to /v1/realtime, with the key if there is one. The WebSocket is closed
// when the test ends.
func (g *Gateway) Realtime(key string) *websocket.Conn {
	g.T.Helper()
	header := http.Header{}
	if key != "" {
		header.Set("Authorization", "Bearer "+key)
	}
	ws, _, err := websocket.Dial(g.T.Context(), g.URL+"/v1/realtime", &websocket.DialOptions{HTTPHeader: header})
	if err != nil {
		g.T.Fatal(err)
	}
	g.T.Cleanup(func() { ws.CloseNow() })
	return ws
}

// SendMessage writes a message to the WebSocket.
func SendMessage(t *testing.T, ws *websocket.Conn, m Message) {
	t.Helper()
	if err := wsjson.Write(t.Context(), ws, m); err != nil {
		t.Fatal(err)
	}
}
