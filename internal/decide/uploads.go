package decide

import (
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// UploadLimits bound the bodies that Envoy is receiving. Envoy buffers each body until it is
// complete, so until then the body takes Envoy's memory, and the request has passed no limit of
// admission yet. The zero value means no limits.
type UploadLimits struct {
	// MinRate is the lowest rate of a body in bytes per second. A body of n bytes may take Grace
	// and n/MinRate. A body of unknown length counts as the longest that is allowed. 0 means that
	// a body may take any time.
	MinRate int64
	// Grace is the time that each body may take in any case.
	Grace time.Duration
	// MaxBytes is the greatest sum of the bodies. One tenant may have three quarters of it. A body
	// always fits when there is no other. A body of unknown length counts as the longest that is
	// allowed, but at most as a sixteenth of MaxBytes. 0 means no limit.
	MaxBytes int64
	// PerTenant is the greatest number of bodies of one tenant. 0 means no limit.
	PerTenant int
	// MaxStreams returns the greatest number of requests of a tenant, or 0. A tenant has no more
	// bodies than that either. nil means no limit.
	MaxStreams func(tenant string) int
}

// UploadStats describe the bodies that Envoy is receiving.
type UploadStats struct {
	// Count is the number of the bodies. Bytes is the sum of their lengths, and Limit its limit.
	Count        int
	Bytes, Limit int64
	// Refused counts the requests that were refused because of a limit, and Late those whose body
	// took too long.
	Refused, Late uint64
}

const (
	// uploadSweep is how often late bodies are looked for.
	uploadSweep = 500 * time.Millisecond
	// tenantShare is the part of MaxBytes that one tenant may have, in quarters.
	tenantShare = 3
	// unknownShare is the part of MaxBytes that a body of unknown length counts as at most. Nobody
	// sees how much of it has come. Most such bodies are short.
	unknownShare = 16
	// keptTenants is how many tenants are kept, so that most requests make none. Tokens may name
	// any number of tenants.
	keptTenants = 1024
)

// uploads has the bodies that Envoy is receiving.
type uploads struct {
	UploadLimits
	// maxBody is the length of a body of unknown length.
	maxBody int64

	mu sync.Mutex
	// tenants and stats are guarded by mu. Up to keptTenants stay in the map without a body.
	tenants map[string]*tenantUploads
	stats   UploadStats
	// first and last are the ends of the list of bodies. Guarded by mu.
	first, last *upload
	// sweeping means that a timer will look for late bodies. Guarded by mu.
	sweeping bool
}

// tenantUploads are the bodies of one tenant.
type tenantUploads struct {
	count int
	bytes int64
}

// uploader is an exchange, of which only answerLate is called.
type uploader interface{ answerLate() }

// upload is one body. Its owner sets the first fields before begin. uploads.mu guards the others.
type upload struct {
	// name is the name of the tenant. length is the length of the body, or -1 if it is unknown.
	name   string
	length int64
	// owner answers the client of a late body. It is called without lock, and may run until end has
	// returned.
	owner uploader

	tenant *tenantUploads
	// bytes is what the body counts as.
	bytes      int64
	deadline   time.Time
	prev, next *upload
	// open means that the body is in the list.
	open bool
	// expired is not nil if the body is late. It is closed when the client has been answered.
	expired chan struct{}
}

func newUploads(l UploadLimits, maxBody int64) *uploads {
	return &uploads{UploadLimits: l, maxBody: maxBody, tenants: map[string]*tenantUploads{}, stats: UploadStats{Limit: l.MaxBytes}}
}

// begin adds a body, or returns an error for its client. A body that does not fit cannot wait,
// since Envoy would receive it meanwhile.
func (u *uploads) begin(up *upload) *openai.Error {
	unknown := up.length < 0
	if unknown {
		up.length = u.maxBody
	}
	up.bytes = up.length
	if unknown && u.MaxBytes > 0 {
		up.bytes = min(up.length, u.MaxBytes/unknownShare)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	t := u.tenants[up.name]
	if t == nil {
		t = new(tenantUploads)
		u.tenants[up.name] = t
	}
	if most := u.mostOf(up.name); most > 0 && t.count >= most {
		u.stats.Refused++
		return openai.Errorf(openai.CodeRateLimited, "The tenant sends the bodies of %d requests already, as many as it may.", t.count)
	}
	up.tenant = t
	if !u.fitsLocked(up) {
		u.stats.Refused++
		u.forgetLocked(up)
		return openai.Errorf(openai.CodeGatewayUnavailable, "The gateway receives as many bytes of other requests as it may.")
	}
	u.appendLocked(up)
	return nil
}

// mostOf returns how many bodies a tenant may have. 0 means no limit.
func (u *uploads) mostOf(tenant string) int {
	most := u.PerTenant
	if u.MaxStreams != nil {
		if n := u.MaxStreams(tenant); n > 0 && (most == 0 || n < most) {
			most = n
		}
	}
	return most
}

// fitsLocked reports whether a further body fits. u.mu is held.
func (u *uploads) fitsLocked(up *upload) bool {
	if u.MaxBytes <= 0 || u.stats.Bytes == 0 {
		return true
	}
	own := up.tenant.bytes
	return u.stats.Bytes+up.bytes <= u.MaxBytes && (own == 0 || own+up.bytes <= u.MaxBytes/4*tenantShare)
}

// appendLocked adds a body to the list and makes sure that it is looked at. u.mu is held.
func (u *uploads) appendLocked(up *upload) {
	up.tenant.count++
	up.tenant.bytes += up.bytes
	u.stats.Count++
	u.stats.Bytes += up.bytes
	up.open, up.prev = true, u.last
	if u.last == nil {
		u.first = up
	} else {
		u.last.next = up
	}
	u.last = up
	if u.MinRate <= 0 {
		return
	}
	up.deadline = time.Now().Add(u.Grace + time.Duration(float64(up.length)/float64(u.MinRate)*float64(time.Second)))
	if !u.sweeping {
		u.sweeping = true
		time.AfterFunc(uploadSweep, u.sweep)
	}
}

// end removes a body, which has arrived or will not. It returns false if the body was late: then
// its client has been answered. Further calls return the same.
func (u *uploads) end(up *upload) bool {
	u.mu.Lock()
	if up.open {
		u.removeLocked(up)
	}
	expired := up.expired
	u.mu.Unlock()
	if expired == nil {
		return true
	}
	<-expired
	return false
}

// removeLocked removes a body from the list. u.mu is held.
func (u *uploads) removeLocked(up *upload) {
	if up.prev == nil {
		u.first = up.next
	} else {
		up.prev.next = up.next
	}
	if up.next == nil {
		u.last = up.prev
	} else {
		up.next.prev = up.prev
	}
	up.prev, up.next, up.open = nil, nil, false
	up.tenant.count--
	up.tenant.bytes -= up.bytes
	u.stats.Bytes -= up.bytes
	u.stats.Count--
	u.forgetLocked(up)
}

// forgetLocked forgets the tenant of a body if it has none and many are kept. u.mu is held.
func (u *uploads) forgetLocked(up *upload) {
	if up.tenant.count == 0 && len(u.tenants) > keptTenants {
		delete(u.tenants, up.name)
	}
}

// sweep answers the clients of late bodies.
func (u *uploads) sweep() {
	now := time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	var next *upload
	for up := u.first; up != nil; up = next {
		next = up.next
		if now.After(up.deadline) {
			u.removeLocked(up)
			u.stats.Late++
			up.expired = make(chan struct{})
			go up.answerLate()
		}
	}
	if u.sweeping = u.first != nil; u.sweeping {
		time.AfterFunc(uploadSweep, u.sweep)
	}
}

// answerLate answers the client of a body that sweep has removed.
func (up *upload) answerLate() {
	defer close(up.expired)
	up.owner.answerLate()
}

// beginUpload has the body of the request counted.
func (x *Exchange) beginUpload() *openai.Error {
	x.upload = upload{name: x.tenant.Name, length: x.head.length(), owner: x}
	fault := x.decider.uploads.begin(&x.upload)
	x.uploading = fault == nil
	return fault
}

// endUpload tells that the body of the request is complete, or will not come. It returns false if
// the body was late: then its client has been answered.
func (x *Exchange) endUpload() bool {
	if !x.uploading {
		return true
	}
	x.uploading = false
	timely := x.decider.uploads.end(&x.upload)
	if !timely {
		x.fault = lateBody()
	}
	return timely
}

// answerLate answers the client of a late body. Envoy is still receiving the body: it takes the
// answer at any time, and then reads no further byte of the body.
func (x *Exchange) answerLate() {
	_ = x.envoy.Reply(reply(lateBody(), x.head.isOfMessages())) // an error means that the client has left
}

// lateBody is the error for a body that takes too long.
func lateBody() *openai.Error {
	return openai.Errorf(openai.CodeRequestTimeout, "The body of the request did not arrive in time.")
}

func (u *uploads) status() UploadStats {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.stats
}
