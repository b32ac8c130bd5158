package kubetest

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// serveLogs serves the logs of the node's pods as a kubelet does, so that the API server can answer
// for pods/log. It returns the port. The server ends with ctx.
//
// It knows follow and tailLines. Unlike a kubelet it returns all runs of a container, whatever the
// name of the container.
func (n *Node) serveLogs(ctx context.Context) (port int32, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", n.serveLog)
	server := &http.Server{Handler: mux, BaseContext: func(net.Listener) context.Context { return ctx }}
	n.running.Go(func() {
		// The API server does not verify the certificate of a kubelet.
		_ = server.ServeTLS(listener, n.cluster.path("tls.crt"), n.cluster.path("tls.key"))
	})
	n.running.Go(func() {
		<-ctx.Done()
		_ = server.Close()
	})
	return int32(listener.Addr().(*net.TCPAddr).Port), nil
}

func (n *Node) serveLog(w http.ResponseWriter, r *http.Request) {
	path := filepath.Join(n.cluster.dir, "pods", r.PathValue("namespace"), r.PathValue("pod"), "log")
	file, err := os.Open(path)
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	defer file.Close()
	text, err := io.ReadAll(file)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	shown := string(text)
	if lines, err := strconv.Atoi(r.FormValue("tailLines")); err == nil {
		all := strings.SplitAfter(shown, "\n")
		whole := len(all) - 1 // the last one is not complete, or empty
		shown = strings.Join(all[max(whole-lines, 0):], "")
	}
	_, err = io.WriteString(w, shown)
	for err == nil && r.FormValue("follow") == "true" {
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-time.After(pollInterval):
		}
		if _, err = os.Stat(path); errors.Is(err, os.ErrNotExist) {
			return
		}
		_, err = io.Copy(w, file)
	}
}
