package admin

import (
	"context"
	"net/http"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// maxAuditPath is the length at which the path in an audit line is cut, in bytes.
const maxAuditPath = 200

// audit is what the log is told of one request that may change something.
type audit struct {
	caller caller
	// old and new are the state before and after the change. They hold no secrets. nil: the request
	// has changed nothing.
	old, new any
}

// contextKey is the type of the key under which a request's context holds its *audit.
type contextKey struct{}

// withAudit returns the request with an audit that handlers complete.
func withAudit(r *http.Request, c caller) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), contextKey{}, &audit{caller: c}))
}

// auditOf returns the audit of a request. Handlers may set its fields.
func auditOf(r *http.Request) *audit { return r.Context().Value(contextKey{}).(*audit) }

// statusWriter remembers the status of a response.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap returns the writer below, so that a response can be flushed.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// audited serves a request that may change something and logs a line about it: who, what, from
// where, the old and the new state, and the outcome.
func (h *handler) audited(serve http.HandlerFunc, w http.ResponseWriter, r *http.Request) {
	recorder := &statusWriter{ResponseWriter: w, status: http.StatusOK}
	serve(recorder, r)
	h.logAudit(r, *auditOf(r), recorder.status)
}

// logAudit logs the audit line of a request. status is that of the response.
func (h *handler) logAudit(r *http.Request, a audit, status int) {
	message, level := "admin call done", zapcore.InfoLevel
	if status >= http.StatusBadRequest {
		message, level = "admin call refused", zapcore.WarnLevel
	}
	path := r.URL.EscapedPath()
	fields := []zap.Field{
		zap.String("who", a.caller.name), zap.String("role", string(a.caller.role)), zap.String("by", a.caller.by),
		zap.String("from", r.RemoteAddr), zap.String("method", r.Method), zap.String("path", path[:min(len(path), maxAuditPath)]),
		zap.Int("status", status),
	}
	if a.old != nil || a.new != nil {
		fields = append(fields, zap.Any("old", a.old), zap.Any("new", a.new))
	}
	log := h.Log
	if a.caller.name == "" {
		log = h.strangers
	}
	log.Log(level, message, fields...)
}

// strangersLog returns a log for calls without valid credentials: at most ten lines a second, since
// anybody can cause them.
func strangersLog(log *zap.Logger) *zap.Logger {
	const lines = 10
	return log.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(core, time.Second, lines, 0)
	}))
}

// refuse answers a request with an error before a handler has seen it, and logs refused changes.
func (h *handler) refuse(w http.ResponseWriter, r *http.Request, c caller, fault *openai.Error) {
	if fault.Code == openai.CodeInvalidAPIKey {
		w.Header().Set("WWW-Authenticate", `Bearer realm="sluice admin"`)
	}
	if !isRead(r) {
		h.logAudit(r, audit{caller: c}, fault.HTTPStatus())
	}
	writeError(w, fault)
}
