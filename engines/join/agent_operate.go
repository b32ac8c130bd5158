package join

import (
	"context"
	"errors"
	"io"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/sluice-gateway/sluice/internal/loglines"
)

// maxPartBytes is the size of the largest text in one logPart.
const maxPartBytes = 64 << 10

// restartAssigned restarts the replicas whose restart an assignment asks for and the one before did
// not.
func (a *Agent) restartAssigned(before, now assignment) {
	for id, restart := range now.Restarts {
		if before.Restarts[id] != restart {
			a.config.Log.Info("restart asked for by the gateway", zap.String("replica", id))
			a.launcher.Restart(id)
		}
	}
}

// sendLog sends a log that the gateway asks for, in a stream of its own, so that a slow reader of a
// log delays no report. It returns when the log or ctx has ended, or nobody reads any more.
func (a *Agent) sendLog(ctx context.Context, conn *grpc.ClientConn, r logRequest) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.NewStream(ctx, logStreamDesc(), logMethod)
	if err != nil {
		a.config.Log.Warn("log not sent", zap.String("replica", r.Replica), zap.Error(withoutGRPC(err)))
		return
	}
	if stream.SendMsg(&logPart{ID: r.ID}) != nil {
		return // RecvMsg would say why; nobody waits for it
	}
	// The context of the stream ends when the gateway ends it.
	err = a.launcher.Log(stream.Context(), logWriter{stream}, r.Replica, loglines.Query{Tail: r.Tail, Search: r.Search, Follow: r.Follow})
	if err != nil && !errors.Is(err, io.EOF) {
		_ = stream.SendMsg(&logPart{Error: err.Error()})
	}
	_ = stream.CloseSend()
	_ = stream.RecvMsg(new(logPart)) // until the gateway has read everything
}

// logWriter sends what is written as parts of a log.
type logWriter struct{ stream grpc.ClientStream }

// Write implements io.Writer. It fails with io.EOF when the gateway has ended the stream.
func (w logWriter) Write(p []byte) (int, error) {
	written := 0
	for len(p) > 0 {
		n := min(len(p), maxPartBytes)
		if err := w.stream.SendMsg(&logPart{Text: string(p[:n])}); err != nil {
			return written, err
		}
		written += n
		p = p[n:]
	}
	return written, nil
}
