package extproc

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// testUpload returns a body of a tenant. late counts the answers to its client.
func testUpload(tenant string, length int64) (up *upload, late *atomic.Int64) {
	late = new(atomic.Int64)
	return &upload{name: tenant, length: length, hold: func() {}, expire: func() { late.Add(1) }}, late
}

func TestX7_ALateBodyIsAnsweredOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUploads(UploadLimits{MinRate: 100, Grace: 2 * time.Second}, 1000)
		short, shortLate := testUpload("a", 100)
		unknown, unknownLate := testUpload("a", -1)
		timely, timelyLate := testUpload("b", 100)
		for _, up := range []*upload{short, unknown, timely} {
			if fault := u.begin(t.Context(), up); fault != nil {
				t.Fatal(fault)
			}
		}
		time.Sleep(2900 * time.Millisecond)
		if !u.end(timely) || !u.end(timely) || shortLate.Load() != 0 {
			t.Error("a body within its time counts as late")
		}
		time.Sleep(time.Second)
		if u.end(short) || u.end(short) || shortLate.Load() != 1 || unknownLate.Load() != 0 || timelyLate.Load() != 0 {
			t.Errorf("late: %d, %d, %d", shortLate.Load(), unknownLate.Load(), timelyLate.Load())
		}
		if s := u.status(); s.Count != 1 || s.Bytes != 1000 || s.Late != 1 {
			t.Errorf("a body of unknown length counts as the longest: %+v", s)
		}
		time.Sleep(10 * time.Second)
		if s := u.status(); u.end(unknown) || s.Count != 0 || s.Bytes != 0 {
			t.Errorf("at the end: %+v", s)
		}
	})
}

func TestX7_BodiesOfATenant(t *testing.T) {
	u := newUploads(UploadLimits{PerTenant: 3, MaxStreams: func(tenant string) int { return map[string]int{"a": 2, "b": 9}[tenant] }}, 1000)
	for tenant, most := range map[string]int{"a": 2, "b": 3, "c": 3} {
		var all []*upload
		for range most {
			up, _ := testUpload(tenant, 1)
			if fault := u.begin(t.Context(), up); fault != nil {
				t.Fatal(fault)
			}
			all = append(all, up)
		}
		one, _ := testUpload(tenant, 1)
		if fault := u.begin(t.Context(), one); fault == nil || fault.Code != openai.CodeRateLimited {
			t.Errorf("%s may have more than %d: %v", tenant, most, fault)
		}
		u.end(all[0])
		if fault := u.begin(t.Context(), one); fault != nil {
			t.Errorf("%s: %v", tenant, fault)
		}
	}
}

func TestX7_ABodyWaitsUntilItFits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUploads(UploadLimits{MaxBytes: 100, Grace: 10 * time.Second}, 1000)
		first, _ := testUpload("a", 60)
		if fault := u.begin(t.Context(), first); fault != nil {
			t.Fatal(fault)
		}
		other, _ := testUpload("b", 30)
		if fault := u.begin(t.Context(), other); fault != nil {
			t.Fatal(fault)
		}
		var held atomic.Int64
		result := make(chan *openai.Error, 1)
		begin := func(ctx context.Context, length int64) {
			up, _ := testUpload("a", length)
			up.hold = func() { held.Add(1) }
			go func() { result <- u.begin(ctx, up) }()
			synctest.Wait()
		}
		begin(t.Context(), 16) // it would fit but for the share of its tenant
		u.end(first)
		if fault := <-result; fault != nil || held.Load() != 1 {
			t.Errorf("%v after %d holds", fault, held.Load())
		}
		begin(t.Context(), 60)
		if fault := <-result; fault == nil || fault.Code != openai.CodeGatewayUnavailable {
			t.Errorf("a body that did not fit in time: %v", fault)
		}
		ctx, leave := context.WithCancel(t.Context())
		begin(ctx, 60)
		leave()
		if fault := <-result; fault == nil {
			t.Error("a client that has left counts")
		}
		if s := u.status(); s.Bytes != 46 || s.Count != 2 {
			t.Errorf("%+v", s)
		}
	})
}

// TestX7_ManyBodies checks that nothing is left after bodies that come, end and are late at the
// same time.
func TestX7_ManyBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUploads(UploadLimits{MinRate: 1000, Grace: time.Second, MaxBytes: 5000, PerTenant: 10}, 1000)
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() {
				up, late := testUpload(string(rune('a'+i%7)), int64(i*5))
				if u.begin(t.Context(), up) != nil {
					return
				}
				time.Sleep(time.Duration(i) * 20 * time.Millisecond)
				if timely := u.end(up); timely == (late.Load() > 0) {
					t.Errorf("timely is %v after %d answers", timely, late.Load())
				}
			})
		}
		all.Wait()
		if s := u.status(); s.Count != 0 || s.Bytes != 0 || u.first != nil || u.last != nil {
			t.Errorf("%+v is left", s)
		}
	})
}

// TestX7_OpenRequestsHaveALimit checks that a gateway without sockets refuses requests at once.
func TestX7_OpenRequestsHaveALimit(t *testing.T) {
	s, _ := newServer(t, nil)
	s.MaxOpen = func() int { return 1 }
	first := open(t, s)
	first.headers(key)
	second := open(t, s)
	if answer := second.headers(key).GetImmediateResponse(); answer.GetStatus().GetCode() != 503 {
		t.Errorf("answer %v, want 503", answer)
	}
}
