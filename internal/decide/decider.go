package decide

import (
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
)

// Config is the configuration of a Decider.
type Config struct {
	Authenticator *authz.Authenticator
	Dispatcher    *dispatch.Dispatcher
	// Handoff passes requests that Envoy alone cannot serve to the relay.
	Handoff *dispatch.Handoff
	// Budget says which budgets of the caller are reached, for a header of the response, or that
	// the request is refused because one is used up.
	Budget func(*authz.Tenant) (reached string, fault *openai.Error)
	// Trace decides whether a native request is traced, from the traceparent header of the client.
	// It returns the traceparent header for the engine.
	Trace func(client string) (own string, traced bool)
	// MaxBody is the greatest request body in bytes. A request that declares a longer body is
	// refused before Envoy reads the body. A longer body without a length is refused by Envoy if it
	// exceeds what Envoy buffers anyway, else by the decider.
	MaxBody int64
	// MaxHeaders are the limits of a request's headers. The zero value means no limits. Envoy's own
	// limits must be higher by what Envoy and Sluice add.
	MaxHeaders headers.Limits
	// Uploads bound the bodies that Envoy is receiving.
	Uploads UploadLimits
	// MaxOpen returns the greatest number of requests that wait or run at engines. Each may take a
	// socket of Envoy, which ends itself when it cannot open one. 0 means no limit.
	MaxOpen func() int
	// Lives reports whether the Envoy with this pid runs. nil means that nobody can tell.
	Lives func(pid int) bool
	// Requests stores the records of the requests.
	Requests *request.Store
	Log      *zap.Logger
}

// Decider decides what Envoy does with requests. Its methods are safe for concurrent use.
type Decider struct {
	Config
	uploads *uploads
	// open counts the exchanges that were not refused.
	open atomic.Int64
	// retired says that another process decides, see Retire.
	retired atomic.Bool
}

// New returns a Decider.
func New(c Config) *Decider { return &Decider{Config: c, uploads: newUploads(c.Uploads, c.MaxBody)} }

// UploadStats describes the bodies that Envoy is receiving.
func (d *Decider) UploadStats() UploadStats { return d.uploads.status() }

// Retire makes the Decider decide nothing more. Every exchange that is not decided yet moves (see
// Exchange.Moved). Call it before dispatch.Dispatcher.Retire, which ends the waits of this process.
// Exchanges that are decided go on until their responses have ended.
func (d *Decider) Retire() { d.retired.Store(true) }

// Retired reports whether another process decides.
func (d *Decider) Retired() bool { return d.retired.Load() }

// Busy reports whether an exchange is open.
func (d *Decider) Busy() bool { return d.open.Load() > 0 }

// checkOpen refuses a request if as many are open as Envoy has sockets for.
func (d *Decider) checkOpen() *openai.Error {
	if most := d.MaxOpen(); most > 0 && d.open.Load() > int64(most) {
		return openai.Errorf(openai.CodeGatewayUnavailable, "The gateway carries %d requests, as many as its limit of open files allows.", most)
	}
	return nil
}
