package decide

import (
	"fmt"
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
	return &upload{name: tenant, length: length, owner: lateCounter{late}}, late
}

// lateCounter counts as the owner of a body.
type lateCounter struct{ late *atomic.Int64 }

func (c lateCounter) answerLate() { c.late.Add(1) }

func TestX7_ALateBodyIsAnsweredOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUploads(UploadLimits{MinRate: 100, Grace: 2 * time.Second}, 1000)
		short, shortLate := testUpload("a", 100)
		unknown, unknownLate := testUpload("a", -1)
		timely, timelyLate := testUpload("b", 100)
		for _, up := range []*upload{short, unknown, timely} {
			if fault := u.begin(up); fault != nil {
				t.Fatal(fault)
			}
		}
		time.Sleep(2900 * time.Millisecond)
		if first, again := u.end(timely), u.end(timely); !first || !again || shortLate.Load() != 0 {
			t.Error("a body within its time counts as late")
		}
		time.Sleep(time.Second)
		if first, again := u.end(short), u.end(short); first || again || shortLate.Load() != 1 || unknownLate.Load() != 0 || timelyLate.Load() != 0 {
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
			if fault := u.begin(up); fault != nil {
				t.Fatal(fault)
			}
			all = append(all, up)
		}
		one, _ := testUpload(tenant, 1)
		if fault := u.begin(one); fault == nil || fault.Code != openai.CodeRateLimited {
			t.Errorf("%s may have more than %d: %v", tenant, most, fault)
		}
		u.end(all[0])
		if fault := u.begin(one); fault != nil {
			t.Errorf("%s: %v", tenant, fault)
		}
	}
	if s := u.status(); s.Refused != 3 || s.Count != 8 {
		t.Errorf("%+v", s)
	}
}

func TestX7_BytesOfBodies(t *testing.T) {
	u := newUploads(UploadLimits{MaxBytes: 1600}, 1000)
	for _, test := range []struct {
		tenant string
		length int64
		fits   bool
	}{
		{"a", 1000, true},
		{"a", 210, false}, // three quarters for one tenant
		{"a", 200, true},
		{"b", 410, false},
		{"b", 300, true},
		{"b", -1, true}, // a sixteenth
		{"b", 1, false},
	} {
		up, _ := testUpload(test.tenant, test.length)
		if fault := u.begin(up); (fault == nil) != test.fits || fault != nil && fault.Code != openai.CodeGatewayUnavailable {
			t.Errorf("%d bytes of %s: %v", test.length, test.tenant, fault)
		}
	}
	if s := u.status(); s.Bytes != 1600 || s.Count != 4 || s.Refused != 3 {
		t.Errorf("%+v", s)
	}
	u = newUploads(UploadLimits{MaxBytes: 1600}, 50)
	first, _ := testUpload("a", 700)
	second, _ := testUpload("a", 500)
	unknown, _ := testUpload("b", -1)
	for _, up := range []*upload{first, unknown, second} {
		if fault := u.begin(up); fault != nil {
			t.Fatal(fault)
		}
	}
	if s := u.status(); s.Bytes != 1250 {
		t.Errorf("a body of unknown length counts as at most the longest that is allowed: %+v", s)
	}
	u.end(first)
	third, _ := testUpload("a", 700)
	if fault := u.begin(third); fault != nil {
		t.Errorf("the bytes of a body that has come count for its tenant: %v", fault)
	}
	u = newUploads(UploadLimits{MaxBytes: 10}, 100)
	alone, _ := testUpload("a", 100)
	if fault := u.begin(alone); fault != nil {
		t.Errorf("a body that is alone: %v", fault)
	}
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
				if u.begin(up) != nil {
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
		time.Sleep(uploadSweep)
		synctest.Wait()
		if u.sweeping {
			t.Error("a timer looks for late bodies although there is none")
		}
	})
}

// TestX7_TenantsOfBodiesAreForgotten: tokens may name any number of tenants.
func TestX7_TenantsOfBodiesAreForgotten(t *testing.T) {
	u := newUploads(UploadLimits{MaxBytes: 100}, 1000)
	lasting, _ := testUpload("lasting", 90)
	if fault := u.begin(lasting); fault != nil {
		t.Fatal(fault)
	}
	for i := range 3 * keptTenants {
		fits, _ := testUpload(fmt.Sprint("fits ", i), 10)
		if fault := u.begin(fits); fault != nil {
			t.Fatal(fault)
		}
		tooLong, _ := testUpload(fmt.Sprint("too long ", i), 50)
		if u.begin(tooLong) == nil {
			t.Fatal("too many bytes are received")
		}
		u.end(fits)
	}
	if n := len(u.tenants); n > keptTenants+1 || u.tenants["lasting"].bytes != 90 {
		t.Errorf("%d tenants are kept: %+v", n, u.tenants["lasting"])
	}
}
