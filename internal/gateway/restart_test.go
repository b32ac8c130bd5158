package gateway

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/adminclient"
)

// TestX20_AnotherGatewayAtTheAddress: a restart whose address belongs to another gateway says so.
// It does not restart the gateway of the state directory and then wait for the other one.
func TestX20_AnotherGatewayAtTheAddress(t *testing.T) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, handOverSignal)
	t.Cleanup(func() { signal.Stop(signals) })
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"version":"v1","pid":%d}`, os.Getppid())
	}))
	t.Cleanup(other.Close)
	path := t.TempDir()
	claimed(t, path)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	client := adminclient.Client{Address: other.URL}
	err := Restart(ctx, parse(t, path, ""), client, client, new(bytes.Buffer))
	if want := fmt.Sprintf("process %d holds the state directory %s; name its admin address by --admin", os.Getpid(), path); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	if len(signals) > 0 {
		t.Error("a process was told to hand over")
	}
}
