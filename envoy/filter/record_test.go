package filter

import (
	"net"
	"strconv"
	"strings"
	"testing"

	datav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	logv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"
)

// logServer collects what Envoy's gRPC access log says.
type logServer struct {
	logv3.UnimplementedAccessLogServiceServer
	entries chan *datav3.HTTPAccessLogEntry
}

func (s *logServer) StreamAccessLogs(stream grpc.ClientStreamingServer[logv3.StreamAccessLogsMessage, logv3.StreamAccessLogsResponse]) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return nil
		}
		for _, e := range m.GetHttpLogs().GetLogEntry() {
			s.entries <- e
		}
	}
}

// accessLog starts a log server.
func accessLog(t *testing.T) (*logServer, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &logServer{entries: make(chan *datav3.HTTPAccessLogEntry, 100)}
	server := grpc.NewServer()
	logv3.RegisterAccessLogServiceServer(server, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return s, l.Addr().String()
}

// TestB6_TheRecordIsEqualToTheAccessLog compares each field of End with what Envoy's log says of
// the same request.
func TestB6_TheRecordIsEqualToTheAccessLog(t *testing.T) {
	logs, address := accessLog(t)
	b := up(t, options{logs: address})
	for _, c := range []struct {
		name, path string
		do         func(f frame)
		status     int
	}{
		{"served", "/v1/x?a=b", frame.decide, 200},
		{"retried", "/fail", frame.decide, 500},
		{"refused", "/no", func(f frame) { f.conn.send(frReply, 0, f.id, replyFrame(403, nil, "refused", "no")) }, 403},
		{"undecided", "/lost", func(f frame) { f.conn.send(frGo, 0, f.id, goFrame(nil, nil, nil, "")) }, 503},
		{"no cluster", "/nc", func(f frame) {
			f.conn.send(frGo, 0, f.id, goFrame(pairs{{"x-sluice-cluster", "model/none"}}, nil, nil, ""))
		}, 503},
	} {
		answered := b.send(t, "POST", c.path, "hello")
		c.do(b.next(t, frBody))
		want(t, answered, c.status)
		compare(t, c.name, b.next(t, frEnd).record(t), <-logs.entries)
	}
	cancel := b.sendAborted(t, "/slow", "hello")
	b.next(t, frBody).decide()
	eventually(t, "the upstream has it", func() bool { return b.counter("cluster.model/m.upstream_rq_active") == "1" })
	cancel()
	compare(t, "aborted", b.next(t, frEnd).record(t), <-logs.entries)
}

// TestB6_TheAccessLogHasTheRequestsWhoseEndIsNotTold breaks the connection of an undecided request.
func TestB6_TheAccessLogHasTheRequestsWhoseEndIsNotTold(t *testing.T) {
	logs, address := accessLog(t)
	b := up(t, options{logs: address})
	c := b.send(t, "POST", "/", "x")
	b.next(t, frBody)
	b.kill()
	want(t, c, 503)
	if entry := <-logs.entries; isTold(entry) {
		t.Errorf("nobody was told of %v, and the log would leave it out", entry)
	}
}

// TestB6_AGatewayOfAnotherVersionLeavesTheEndsToTheAccessLog has a gateway go and one of a later
// version come while a request runs.
func TestB6_AGatewayOfAnotherVersionLeavesTheEndsToTheAccessLog(t *testing.T) {
	logs, address := accessLog(t)
	b := up(t, options{logs: address})
	c := b.send(t, "POST", "/slow", "x")
	f := b.next(t, frBody)
	f.conn.send(frGo, 0, f.id, goFrame(toModel, nil, pairs{{"tenant", "acme"}}, ""))
	b.upstreamHasBegun(t)
	b.kill()
	b.later.Store(1)
	b.listen(t)
	eventually(t, "the gateway has refused the filter", func() bool {
		lost, _ := strconv.Atoi(b.counter("sluice_connections_lost"))
		return lost > 2
	})
	b.upstream.release <- struct{}{}
	want(t, c, 200)
	entry := <-logs.entries
	if isTold(entry) || entry.GetResponse().GetResponseCode().GetValue() != 200 {
		t.Errorf("nobody was told of %v, and the log would leave it out", entry)
	}
	if tenant := valuesOf(entry)["tenant"].GetStringValue(); tenant != "acme" {
		t.Errorf("the entry has the tenant %q", tenant)
	}
}

// valuesOf returns what the filter says of a request in the access log.
func valuesOf(e *datav3.HTTPAccessLogEntry) map[string]*structpb.Value {
	return e.GetCommonProperties().GetMetadata().GetFilterMetadata()["sluice"].GetFields()
}

// isTold reports whether the filter has marked a request as told.
func isTold(e *datav3.HTTPAccessLogEntry) bool {
	return valuesOf(e)["told"].GetStringValue() == "1"
}

func compare(t *testing.T, name string, r record, e *datav3.HTTPAccessLogEntry) {
	t.Helper()
	if !isTold(e) {
		t.Errorf("%s: the request is not marked as told", name)
	}
	common, asked, response := e.GetCommonProperties(), e.GetRequest(), e.GetResponse()
	micro := func(known bool, n int64) int64 {
		if !known {
			return -1
		}
		return n
	}
	last, first := common.GetTimeToLastUpstreamRxByte(), common.GetTimeToFirstUpstreamTxByte()
	firstBody, err := strconv.ParseInt(tag(common, "first_byte"), 10, 64)
	numbers := [9]int64{
		micro(response.GetResponseCode() != nil, int64(response.GetResponseCode().GetValue())),
		int64(asked.GetRequestBodyBytes()), int64(response.GetResponseBodyBytes()),
		int64(common.GetUpstreamRequestAttemptCount()),
		common.GetDuration().AsDuration().Microseconds(), micro(err == nil, firstBody),
		micro(last != nil, last.AsDuration().Microseconds()), micro(first != nil, first.AsDuration().Microseconds()),
		common.GetStartTime().AsTime().UnixMicro(),
	}
	if r.numbers != numbers {
		t.Errorf("%s: the numbers are %v; the log has %v", name, r.numbers, numbers)
	}
	upstream := ""
	if a := common.GetUpstreamRemoteAddress().GetSocketAddress(); a != nil {
		upstream = net.JoinHostPort(a.GetAddress(), strconv.Itoa(int(a.GetPortValue())))
	}
	path := asked.GetOriginalPath()
	if path == "" {
		path = asked.GetPath()
	}
	for key, value := range map[string]string{
		"method": asked.GetRequestMethod().String(), "path": path, "id": asked.GetRequestId(),
		"route": common.GetRouteName(), "details": response.GetResponseCodeDetails(), "upstream": upstream,
		"cluster": common.GetUpstreamCluster(), "replica": tag(common, "replica"),
	} {
		if r.list[key] != value {
			t.Errorf("%s: %s is %q; the log has %q", name, key, r.list[key], value)
		}
	}
	if flags := shortFlags(common.GetResponseFlags()); r.list["flags"] != flags {
		t.Errorf("%s: flags are %q; the log has %q", name, r.list["flags"], flags)
	}
}

// shortFlags renders the flags of this test.
func shortFlags(f *datav3.ResponseFlags) string {
	var all []string
	for _, one := range []struct {
		set  bool
		name string
	}{
		{f.GetNoRouteFound(), "NR"}, {f.GetUpstreamRetryLimitExceeded(), "URX"}, {f.GetNoClusterFound(), "NC"},
		{f.GetDownstreamConnectionTermination(), "DC"}, {f.GetUpstreamRemoteReset(), "UR"},
	} {
		if one.set {
			all = append(all, one.name)
		}
	}
	return strings.Join(all, ",")
}

// tag reads a custom tag. Envoy writes a dash for what it does not know.
func tag(c *datav3.AccessLogCommon, name string) string {
	if v := c.GetCustomTags()[name]; v != "-" {
		return v
	}
	return ""
}
