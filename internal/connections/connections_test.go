package connections

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
)

var (
	anna  = netip.MustParseAddr("192.0.2.1")
	bert  = netip.MustParseAddr("192.0.2.2")
	clara = netip.MustParseAddr("2001:db8::")
)

func TestX1_FairShare(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		counts map[netip.Addr]int
		total  int
		want   int
	}{
		{nil, 10, math.MaxInt},
		{map[netip.Addr]int{anna: 9}, 10, math.MaxInt},
		{map[netip.Addr]int{anna: 10}, 10, 10},
		{map[netip.Addr]int{anna: 11}, 10, 10},
		{map[netip.Addr]int{anna: 100, bert: 2}, 10, 8},
		{map[netip.Addr]int{anna: 100, bert: 90, clara: 2}, 10, 4},
		{map[netip.Addr]int{anna: 3, bert: 3, clara: 3}, 2, 0},
	} {
		if got := fairShare(test.counts, test.total); got != test.want {
			t.Errorf("fairShare(%v, %d) = %d, want %d", test.counts, test.total, got, test.want)
		}
	}
}

// TestX1_FairShareFits checks that the sources fit into the total under their share, and that no
// larger share would do.
func TestX1_FairShareFits(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		sources := map[netip.Addr]int{}
		for i := range 1 + random.IntN(20) {
			sources[netip.AddrFrom4([4]byte{byte(i)})] = 1 + random.IntN(100)
		}
		total := 1 + random.IntN(1000)
		share := fairShare(sources, total)
		under := func(share int) int {
			n := 0
			for _, have := range sources {
				n += min(have, share)
			}
			return n
		}
		if under(share) > total || share != math.MaxInt && under(share+1) <= total && under(share) < total || share == math.MaxInt && under(share) == total {
			t.Fatalf("share %d of %d for %v: %d, and %d with one more", share, total, sources, under(share), under(share+1))
		}
	}
}

// TestX1_Count checks that the kernel's answer has the connections of a listener, by source.
func TestX1_Count(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"127.0.0.1:0", "[::]:0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		listen := l.Addr().(*net.TCPAddr).AddrPort()
		want := map[netip.Addr]int{}
		for i, source := range []string{"127.0.0.1", "127.0.0.9", "127.0.0.9"} {
			dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
			c, err := dialer.Dial("tcp", fmt.Sprint("127.0.0.1:", listen.Port()))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if i == 0 { // one that the server has accepted and one that waits count alike
				accepted, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer accepted.Close()
			}
			want[netip.MustParseAddr(source)]++
		}
		if listen.Addr().Is4() { // another server has the same port at another address
			other, err := net.Listen("tcp", fmt.Sprint("127.0.0.2:", listen.Port()))
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			c, err := net.Dial("tcp", other.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		}
		got, err := Count(listen)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
			t.Errorf("%s (-want +got):\n%s", address, d)
		}
	}
}

func TestX1_Source(t *testing.T) {
	t.Parallel()
	for client, want := range map[string]string{
		"192.0.2.1": "192.0.2.1", "::ffff:192.0.2.1": "192.0.2.1", "2001:db8:1:2:ffff:4:5:6": "2001:db8:1:2::", "fe80::1%eth0": "fe80::",
	} {
		if got := Source(netip.MustParseAddr(client)); got != netip.MustParseAddr(want) {
			t.Errorf("source of %s is %s, want %s", client, got, want)
		}
	}
}

// testGuard is a Guard with counts of the test's own.
type testGuard struct {
	*Guard
	counts map[netip.Addr]int
	err    error
	modes  []Mode
	now    time.Time
}

func newTestGuard(t *testing.T, c Config) *testGuard {
	g := &testGuard{now: time.Unix(1000, 0)}
	c.Count = func(netip.AddrPort) (map[netip.Addr]int, error) { return g.counts, g.err }
	if c.Total == nil {
		c.Total = func(netip.AddrPort) (int, error) { return 0, errors.New("not known") }
	}
	c.Changed = func(m Mode) { g.modes = append(g.modes, m) }
	c.PressureFile = filepath.Join(t.TempDir(), "pressure")
	c.Log = zap.NewNop()
	if c.Limit == nil {
		c.Limit = func() int { return 100 }
	}
	g.Guard = New(c)
	return g
}

// count makes the guard look at counts after a time.
func (g *testGuard) count(after time.Duration, counts map[netip.Addr]int) {
	g.now, g.counts = g.now.Add(after), counts
	g.look(g.now)
}

func (g *testGuard) pressure(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(g.PressureFile)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// admitted is how many of n further connections of a client are admitted.
func (g *testGuard) admitted(client netip.Addr, n int) int {
	admitted := 0
	for range n {
		r := &ratelimit.RateLimitRequest{Descriptors: []*common.RateLimitDescriptor{{
			Entries: []*common.RateLimitDescriptor_Entry{{Key: "source", Value: client.String()}},
		}}}
		answer, err := (&service{guard: g.Guard}).ShouldRateLimit(context.Background(), r)
		if err == nil && answer.GetOverallCode() == ratelimit.RateLimitResponse_OK {
			admitted++
		}
	}
	return admitted
}

func TestX1_NearTheLimitASourceHasItsShare(t *testing.T) {
	t.Parallel()
	g := newTestGuard(t, Config{})
	g.count(0, map[netip.Addr]int{anna: 40, bert: 3})
	if got := g.pressure(t); len(g.modes) != 0 || got != "0.43" {
		t.Fatalf("modes %v and pressure %s far from the limit", g.modes, got)
	}
	g.count(time.Second, map[netip.Addr]int{anna: 90, bert: 3})
	if d := cmp.Diff([]Mode{{AskSource: true, NearLimit: true}}, g.modes); d != "" {
		t.Fatalf("modes near the limit:\n%s", d)
	}
	if n := g.admitted(anna, 1); n != 0 {
		t.Error("a source with more than its share got one more")
	}
	if n := g.admitted(bert, 10); n != 7 {
		t.Errorf("the other source got %d of 7 that are left", n)
	}
	if s := g.Status(); s.Source != anna || s.Most != 90 || s.Refused != 4 || !s.Near() {
		t.Errorf("status %+v", s)
	}
	// The connections of the first source have ended, and it opens as many anew between two counts.
	g.count(time.Second, map[netip.Addr]int{anna: 10, bert: 10})
	if n := g.admitted(anna, 100); n != 60 {
		t.Errorf("%d more connections, want 60: up to its share of 70", n)
	}
	if got := g.pressure(t); got != "0.80" {
		t.Errorf("pressure %s while the guard acts", got)
	}
	g.count(calm, map[netip.Addr]int{anna: 10, bert: 10})
	if got := g.pressure(t); len(g.modes) != 2 || got != "0.80" { // Envoy learns of the mode before
		t.Errorf("modes %v and pressure %s when the guard stops to act", g.modes, got)
	}
	g.count(time.Second, map[netip.Addr]int{anna: 10, bert: 10})
	if got := g.pressure(t); len(g.modes) != 2 || g.modes[1] != (Mode{}) || got != "0.20" {
		t.Errorf("modes %v and pressure %s after the flood", g.modes, got)
	}
}

func TestX1_CapOfASource(t *testing.T) {
	t.Parallel()
	g := newTestGuard(t, Config{PerSource: 5, Trusted: []netip.Prefix{netip.MustParsePrefix("192.0.2.2/32")}})
	if m := g.Mode(); !m.AskSource || m.NearLimit {
		t.Errorf("mode %+v, want to be asked", m)
	}
	g.count(0, map[netip.Addr]int{anna: 3})
	if a, b := g.admitted(anna, 10), g.admitted(bert, 10); a != 2 || b != 10 {
		t.Errorf("%d and %d connections, want 2 up to the cap and 10 of the proxy", a, b)
	}
	if len(g.modes) != 0 {
		t.Errorf("modes %v far from the limit", g.modes)
	}
}

// TestX1_UncountedConnections checks that the guard lets everybody in when it cannot count.
func TestX1_UncountedConnections(t *testing.T) {
	t.Parallel()
	g := newTestGuard(t, Config{PerSource: 1})
	g.err = errors.New("no netlink")
	g.count(0, nil)
	if n := g.admitted(anna, 3); n != 3 || g.Status().Err == nil {
		t.Errorf("%d of 3 admitted, status %+v", n, g.Status())
	}
	g.err = nil
	g.count(time.Second, map[netip.Addr]int{anna: 1})
	if n := g.admitted(anna, 1); n != 0 || g.Status().Err != nil {
		t.Errorf("%d admitted above the cap, status %+v", n, g.Status())
	}
	g.err = errors.New("no netlink")
	g.count(2*time.Second, nil)
	if n := g.admitted(anna, 100); n != 100 || g.Status().Near() {
		t.Errorf("%d of 100 admitted, status %+v", n, g.Status())
	}
}

// TestX1_RunCountsEachSecond checks that the guard counts at once and then each second, and that
// counts that take long have pauses between them.
func TestX1_RunCountsEachSecond(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]int{0: 600, time.Second: 600 / (1 + restFactor)} {
		synctest.Test(t, func(t *testing.T) {
			g := newTestGuard(t, Config{})
			counts := 0
			g.Guard.Count = func(netip.AddrPort) (map[netip.Addr]int, error) {
				time.Sleep(took)
				counts++
				return map[netip.Addr]int{anna: 1}, nil
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			if err := g.Run(ctx); err != nil || counts < want-1 || counts > want+1 || g.Status().Open != 1 {
				t.Errorf("%d counts of %v in 10 minutes, want %d; %v", counts, took, want, err)
			}
		})
	}
}

// TestX1_TheKernelCountsForAGuard checks that a guard without functions of its own asks the kernel.
func TestX1_TheKernelCountsForAGuard(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	accepted, err := l.Accept() // until then the kernel may not count it
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	g := New(Config{Listen: l.Addr().(*net.TCPAddr).AddrPort(), Limit: func() int { return 100 }, Log: zap.NewNop()})
	g.look(time.Now())
	if s := g.Status(); s.Open != 1 || s.Err != nil || g.total < 1 {
		t.Errorf("status %+v with %d sockets", s, g.total)
	}
}

func TestX1_RunStops(t *testing.T) {
	t.Parallel()
	g := newTestGuard(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Run(ctx); err != nil {
		t.Error(err)
	}
}

// TestX1_TheStatusNamesWhoCameSinceTheCount checks that the status has the source of connections
// that were admitted after a count that found none.
func TestX1_TheStatusNamesWhoCameSinceTheCount(t *testing.T) {
	t.Parallel()
	g := newTestGuard(t, Config{PerSource: 90})
	g.count(0, map[netip.Addr]int{})
	if n := g.admitted(anna, 2); n != 2 {
		t.Fatalf("%d of 2 connections admitted", n)
	}
	if n := g.admitted(bert, 88); n != 88 {
		t.Fatalf("%d of 88 connections admitted", n)
	}
	if s := g.Status(); s.Open != 90 || s.Source != bert || s.Most != 88 {
		t.Errorf("status %+v", s)
	}
}

// TestX1_UnknownLimit checks that the guard only counts while it does not know the limit.
func TestX1_UnknownLimit(t *testing.T) {
	t.Parallel()
	g := newTestGuard(t, Config{Limit: func() int { return 0 }})
	g.count(0, map[netip.Addr]int{anna: 1000})
	if n := g.admitted(anna, 3); n != 3 || len(g.modes) != 0 || g.Status().Near() || g.Status().Open != 1003 {
		t.Errorf("%d of 3 admitted, modes %v, status %+v", n, g.modes, g.Status())
	}
	if _, err := os.ReadFile(g.PressureFile); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a pressure was written: %v", err)
	}
}

// TestX1_ThePressureIsWrittenWhenItChanges checks that Envoy, which watches the file, hears of each
// change once, and of one that could not be written later.
func TestX1_ThePressureIsWrittenWhenItChanges(t *testing.T) {
	t.Parallel()
	g := newTestGuard(t, Config{})
	g.PressureFile = filepath.Join(filepath.Dir(g.PressureFile), "folder", "pressure")
	g.count(0, map[netip.Addr]int{anna: 10})
	if err := os.Mkdir(filepath.Dir(g.PressureFile), 0o700); err != nil {
		t.Fatal(err)
	}
	g.count(time.Second, map[netip.Addr]int{anna: 10})
	if got := g.pressure(t); got != "0.10" {
		t.Errorf("pressure %s after a failed write", got)
	}
	if err := os.Remove(g.PressureFile); err != nil {
		t.Fatal(err)
	}
	g.count(time.Second, map[netip.Addr]int{anna: 10})
	if _, err := os.Stat(g.PressureFile); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the same pressure was written again: %v", err)
	}
	g.count(time.Second, map[netip.Addr]int{anna: 11})
	if got := g.pressure(t); got != "0.11" {
		t.Errorf("pressure %s after a change", got)
	}
}

// TestX1_QuestionsWithoutASource checks that only the entry that names the source counts.
func TestX1_QuestionsWithoutASource(t *testing.T) {
	t.Parallel()
	g := newTestGuard(t, Config{PerSource: 1})
	g.count(0, map[netip.Addr]int{anna: 1})
	for _, e := range []*common.RateLimitDescriptor_Entry{{Key: "other", Value: anna.String()}, {Key: "source", Value: "nobody"}, {Key: "source", Value: anna.String()}} {
		r := &ratelimit.RateLimitRequest{Descriptors: []*common.RateLimitDescriptor{{Entries: []*common.RateLimitDescriptor_Entry{e}}}}
		answer, err := (&service{guard: g.Guard}).ShouldRateLimit(t.Context(), r)
		refused := answer.GetOverallCode() == ratelimit.RateLimitResponse_OVER_LIMIT
		if err != nil || refused != (e.GetKey() == "source" && e.GetValue() == anna.String()) {
			t.Errorf("%v: refused %v, %v", e, refused, err)
		}
	}
	if s := g.Status(); s.Open != 1 || s.Refused != 1 {
		t.Errorf("status %+v", s)
	}
}

// TestX1_OfTwoLargestSourcesTheFirstIsNamed checks that the status does not change by itself.
func TestX1_OfTwoLargestSourcesTheFirstIsNamed(t *testing.T) {
	t.Parallel()
	sources := map[netip.Addr]int{anna: 3, bert: 3, clara: 2}
	for range 50 {
		if source, n := largest(sources); source != anna || n != 3 {
			t.Fatalf("%s with %d", source, n)
		}
	}
}

// TestX1_FullIsFull checks that an Envoy which allows more than the file does now is held to the
// file's number.
func TestX1_FullIsFull(t *testing.T) {
	t.Parallel()
	limit := 100
	g := newTestGuard(t, Config{Limit: func() int { return limit }})
	g.count(0, map[netip.Addr]int{anna: 60, bert: 5})
	limit = 65
	g.count(time.Second, map[netip.Addr]int{anna: 60, bert: 5})
	if n := g.admitted(bert, 1); n != 0 || !g.modes[0].AskSource {
		t.Errorf("%d admitted above the limit, modes %v", n, g.modes)
	}
}

// TestX1_UnchangedConnectionsAreNotCounted checks that the guard counts again when a socket has
// come or gone, when it has admitted a connection, when it acts, and after some time.
func TestX1_UnchangedConnectionsAreNotCounted(t *testing.T) {
	t.Parallel()
	total := 1
	g := newTestGuard(t, Config{PerSource: 50, Total: func(netip.AddrPort) (int, error) { return total, nil }})
	some := map[netip.Addr]int{anna: 3}
	g.count(0, some)
	open := func(after time.Duration, n int) int {
		g.count(after, map[netip.Addr]int{anna: n})
		return g.Status().Open
	}
	if n := open(time.Second, 4); n != 3 {
		t.Errorf("%d connections, want 3 of the last count", n)
	}
	total = 2
	if n := open(time.Second, 5); n != 5 {
		t.Errorf("%d connections after a socket has come, want 5", n)
	}
	if n := g.admitted(anna, 1); n != 1 {
		t.Error("the source is below its cap and got no connection")
	}
	if n := open(time.Second, 7); n != 7 {
		t.Errorf("%d connections after one was admitted, want 7", n)
	}
	if n := open(recount-time.Millisecond, 8); n != 7 {
		t.Errorf("%d connections, want 7 of the last count", n)
	}
	if n := open(time.Millisecond, 9); n != 9 {
		t.Errorf("%d connections after %v, want 9", n, recount)
	}
	total = 3
	open(time.Second, 90)
	if n := open(time.Second, 91); n != 91 {
		t.Errorf("%d connections near the limit, want 91", n)
	}
}

// TestX1_FewSocketsAreNotCounted checks that the guard does not ask for the sources while the
// machine has few sockets, and does when it has more.
func TestX1_FewSocketsAreNotCounted(t *testing.T) {
	t.Parallel()
	total := 1
	g := newTestGuard(t, Config{Total: func(netip.AddrPort) (int, error) { return total, nil }})
	g.count(0, map[netip.Addr]int{anna: 1})
	for _, step := range []struct {
		after              time.Duration
		total, n, wantOpen int
	}{
		{time.Second, 39, 39, 1}, // of 100
		{time.Second, 40, 40, 40},
		{time.Second, 39, 38, 40},
		{recount - time.Second - time.Millisecond, 38, 37, 40},
		{time.Millisecond, 38, 37, 37},
		{time.Second, 90, 90, 90},
	} {
		total = step.total
		g.count(step.after, map[netip.Addr]int{anna: step.n})
		if open := g.Status().Open; open != step.wantOpen {
			t.Errorf("%d connections with %d sockets after %v, want %d", open, step.total, step.after, step.wantOpen)
		}
	}
	if !g.modes[0].NearLimit {
		t.Errorf("90 of 100 connections, and modes %v", g.modes)
	}
}

// TestX1_SocketTotal checks that the kernel's number has the sockets of a listener. Other sockets
// of this machine come and go, so the number says little beyond that.
func TestX1_SocketTotal(t *testing.T) {
	const many = 200
	for _, at := range []struct{ listen, client string }{{"127.0.0.1:0", "127.0.0.1:"}, {"[::]:0", "127.0.0.1:"}, {"[::]:0", "[::1]:"}} {
		l, err := net.Listen("tcp", at.listen)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		listen := l.Addr().(*net.TCPAddr).AddrPort()
		for range many {
			c, err := net.Dial("tcp", fmt.Sprint(at.client, listen.Port()))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			accepted, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer accepted.Close()
		}
		if after, err := socketTotal(listen); err != nil || after < many {
			t.Errorf("%v: %d sockets with %d connections, %v", at, after, many, err)
		}
	}
}

// TestX1_CountingKeepsNoDescriptor checks that what the guard does each second leaves nothing open.
func TestX1_CountingKeepsNoDescriptor(t *testing.T) { // alone: others open descriptors
	const many = 5
	listen := netip.MustParseAddrPort("127.0.0.1:80")
	open := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	before := open()
	for range many {
		if _, err := Count(listen); err != nil {
			t.Fatal(err)
		}
		if _, err := socketTotal(listen); err != nil {
			t.Fatal(err)
		}
	}
	if after := open(); after >= before+many {
		t.Errorf("%d descriptors before and %d after %d counts", before, after, many)
	}
}

// BenchmarkSocketTotal measures what the guard asks before it counts.
func BenchmarkSocketTotal(b *testing.B) {
	listen := netip.MustParseAddrPort("127.0.0.1:80")
	for b.Loop() {
		if _, err := socketTotal(listen); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCount measures a count of few and of many connections.
func BenchmarkCount(b *testing.B) {
	for _, clients := range []int{1, 4000} {
		b.Run(fmt.Sprint(clients), func(b *testing.B) { benchmarkCount(b, clients) })
	}
}

func benchmarkCount(b *testing.B, clients int) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	for range clients {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		accepted, err := l.Accept()
		if err != nil {
			b.Fatal(err)
		}
		defer accepted.Close()
	}
	for b.Loop() {
		if _, err := Count(l.Addr().(*net.TCPAddr).AddrPort()); err != nil {
			b.Fatal(err)
		}
	}
}
