package telemetry

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	datav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	alsv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/internal/failover"
	"github.com/sluice-gateway/sluice/internal/grpcserver"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/routes"
)

var began = time.Date(2030, 5, 4, 3, 2, 1, 0, time.UTC)

// served is a record like Envoy writes it for a streamed chat.
func served() *datav3.HTTPAccessLogEntry {
	return &datav3.HTTPAccessLogEntry{
		ProtocolVersion: datav3.HTTPAccessLogEntry_HTTP2,
		CommonProperties: &datav3.AccessLogCommon{
			AccessLogType:               datav3.AccessLogType_DownstreamEnd,
			StartTime:                   timestamppb.New(began),
			Duration:                    durationpb.New(2 * time.Second),
			TimeToFirstUpstreamTxByte:   durationpb.New(300 * time.Millisecond),
			TimeToLastUpstreamRxByte:    durationpb.New(1900 * time.Millisecond),
			UpstreamCluster:             "model/org/chat",
			UpstreamRemoteAddress:       socketAddress("127.0.0.1", 41001),
			UpstreamRequestAttemptCount: 2,
			RouteName:                   "stream",
			CustomTags:                  map[string]string{"sluice_replica": "chat-1", "sluice_first_byte_us": "450250"},
			Metadata: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
				"sluice": {Fields: map[string]*structpb.Value{
					"tenant": structpb.NewStringValue("acme"), "cost": structpb.NewNumberValue(1200), "held": structpb.NewBoolValue(true),
				}},
				"other": {Fields: map[string]*structpb.Value{"x": structpb.NewStringValue("y")}},
			}},
		},
		Request: &datav3.HTTPRequestProperties{
			RequestMethod: corev3.RequestMethod_POST, Path: "/v1/chat/completions?api_key=secret", RequestId: "id-1", RequestBodyBytes: 512,
		},
		Response: &datav3.HTTPResponseProperties{
			ResponseCode: wrapperspb.UInt32(200), ResponseCodeDetails: "via_upstream", ResponseBodyBytes: 9000,
		},
	}
}

func socketAddress(ip string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: ip, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

func TestAccessLogOverGRPC(t *testing.T) {
	t.Parallel()
	entries := make(chan request.Entry, 10)
	stream := dial(t, &AccessLog{OnEntry: func(e request.Entry) { entries <- e }})
	refused := &datav3.HTTPAccessLogEntry{ // Envoy's codec refused it: next to nothing is known
		CommonProperties: &datav3.AccessLogCommon{
			AccessLogType: datav3.AccessLogType_DownstreamEnd,
			ResponseFlags: &datav3.ResponseFlags{DownstreamProtocolError: true},
		},
		Response: &datav3.HTTPResponseProperties{ResponseCode: wrapperspb.UInt32(400)},
	}
	running := served()
	running.CommonProperties.AccessLogType = datav3.AccessLogType_DownstreamPeriodic
	running.CommonProperties.Duration, running.CommonProperties.Metadata = nil, nil
	// The name of the log comes in the first message of a stream only.
	send(t, stream, "sluice_requests", served())
	send(t, stream, "", refused, running)
	if _, err := stream.CloseAndRecv(); err != nil {
		t.Fatal(err)
	}

	whole := request.Entry{
		Log: headers.LogRequests, RequestID: "id-1", Method: "POST", Path: "/v1/chat/completions", Route: "stream",
		Status: 200, Details: "via_upstream", Upstream: "127.0.0.1:41001", Cluster: "model/org/chat", Model: "org/chat", Replica: "chat-1",
		Attempts: 2, Streamed: true, Metadata: map[string]string{"tenant": "acme", "cost": "1200", "held": "true"},
		BytesIn: 512, BytesOut: 9000, Start: began, Duration: 2 * time.Second,
		FirstByte: 450250 * time.Microsecond, LastByte: 1900 * time.Millisecond, UpstreamDuration: 1600 * time.Millisecond,
	}
	soFar := whole
	soFar.Interim, soFar.Duration, soFar.Metadata = true, 0, nil
	want := []request.Entry{whole, {Log: headers.LogRequests, Status: 400, Flags: "DPE"}, soFar}
	for i := range want {
		want[i].PID = os.Getpid()
	}
	for i := range want {
		if diff := cmp.Diff(want[i], <-entries); diff != "" {
			t.Errorf("entry %d (-want +got)\n%s", i, diff)
		}
	}
}

// TestAccessLogDiscards: the zero AccessLog, and TCP records, must not end the stream.
func TestAccessLogDiscards(t *testing.T) {
	t.Parallel()
	stream := dial(t, &AccessLog{})
	send(t, stream, "sluice_requests", served())
	tcp := &alsv3.StreamAccessLogsMessage{LogEntries: &alsv3.StreamAccessLogsMessage_TcpLogs{}}
	if err := stream.Send(tcp); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.CloseAndRecv(); err != nil {
		t.Fatal(err)
	}
}

// TestStreamedRoutes: a stream is one whichever way it takes.
func TestStreamedRoutes(t *testing.T) {
	t.Parallel()
	for route, want := range map[string]bool{routes.Stream: true, routes.RelayStream: true, routes.Relay: false} {
		record := served()
		record.CommonProperties.RouteName = route
		if e := entryOf(t, headers.LogRequests, record); e.Streamed != want {
			t.Errorf("%s: streamed %v", route, e.Streamed)
		}
	}
}

func TestAttemptRecords(t *testing.T) {
	t.Parallel()
	record := func(kind datav3.AccessLogType, f *datav3.ResponseFlags, status *wrapperspb.UInt32Value) *datav3.HTTPAccessLogEntry {
		return &datav3.HTTPAccessLogEntry{
			CommonProperties: &datav3.AccessLogCommon{AccessLogType: kind, ResponseFlags: f},
			Response:         &datav3.HTTPResponseProperties{ResponseCode: status},
		}
	}
	end, ready := datav3.AccessLogType_UpstreamEnd, datav3.AccessLogType_UpstreamPoolReady
	for _, c := range []struct {
		name   string
		in     *datav3.HTTPAccessLogEntry
		failed string
		moved  bool
	}{
		{"refused", record(end, &datav3.ResponseFlags{UpstreamConnectionFailure: true}, nil), request.ReasonConnect, false},
		{"dropped", record(end, &datav3.ResponseFlags{UpstreamConnectionTermination: true}, nil), request.ReasonReset, false},
		{"reset", record(end, &datav3.ResponseFlags{UpstreamRemoteReset: true}, nil), request.ReasonReset, false},
		{"garbled", record(end, &datav3.ResponseFlags{UpstreamProtocolError: true}, nil), request.ReasonReset, false},
		{"cut after its headers", record(end, &datav3.ResponseFlags{UpstreamProtocolError: true}, wrapperspb.UInt32(200)), "", false},
		{"answered an error", record(end, nil, wrapperspb.UInt32(503)), request.Reason5xx, false},
		{"refused it", record(end, nil, wrapperspb.UInt32(429)), failover.TooMany, false},
		{"refused a bad request", record(end, nil, wrapperspb.UInt32(422)), "", false},
		{"did not begin in time", record(end, &datav3.ResponseFlags{UpstreamRequestTimeout: true}, nil), request.ReasonTTFTTimeout, false},
		{"taken over", record(ready, nil, nil), "", true},
		{"end of the one that took over", record(end, nil, wrapperspb.UInt32(200)), "", false},
	} {
		e := entryOf(t, headers.LogAttempts, c.in)
		if got := e.FailedAttempt(); got != c.failed {
			t.Errorf("%s: failed by %q, want %q", c.name, got, c.failed)
		}
		if got := e.Moved(); got != c.moved {
			t.Errorf("%s: moved %v, want %v", c.name, got, c.moved)
		}
		e.Log = headers.LogRequests
		if e.Moved() || e.FailedAttempt() != "" {
			t.Errorf("%s: a record of %s was taken for an attempt's", c.name, e.Log)
		}
	}
}

// TestFlagsComplete: every flag of the message has a short form of its own.
func TestFlagsComplete(t *testing.T) {
	t.Parallel()
	all := (&datav3.ResponseFlags{}).ProtoReflect().Descriptor().Fields()
	seen := map[string]protoreflect.Name{}
	for i := range all.Len() {
		field, f := all.Get(i), &datav3.ResponseFlags{}
		if field.Kind() == protoreflect.BoolKind {
			f.ProtoReflect().Set(field, protoreflect.ValueOfBool(true))
		} else {
			f.ProtoReflect().Mutable(field)
		}
		short := flags(marshal(t, f))
		if short == "" || seen[short] != "" {
			t.Errorf("%s: short form %q (also that of %q)", field.Name(), short, seen[short])
		}
		seen[short] = field.Name()
	}
	both := flags(marshal(t, &datav3.ResponseFlags{UpstreamConnectionFailure: true, UpstreamRetryLimitExceeded: true}))
	if both != "UF,URX" {
		t.Errorf("got %q, want UF,URX", both)
	}
	e := request.Entry{Flags: both}
	if !e.HasFlag("URX") || e.HasFlag("UR") || e.HasFlag("X") {
		t.Error("HasFlag must compare whole flags")
	}
}

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// entryOf returns the entry of a record of the named log.
func entryOf(t testing.TB, log string, in *datav3.HTTPAccessLogEntry) request.Entry {
	t.Helper()
	e, err := newEntry(log, marshal(t, in), &request.Words{})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func dial(t *testing.T, log *AccessLog) alsv3.AccessLogService_StreamAccessLogsClient {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	lis, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &grpcserver.Server{Methods: map[string]grpcserver.Method{AccessLogMethod: log.Open}}
	go server.Serve(lis) //nolint:errcheck // ends with Stop
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	stream, err := alsv3.NewAccessLogServiceClient(conn).StreamAccessLogs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func send(t *testing.T, stream alsv3.AccessLogService_StreamAccessLogsClient, log string, records ...*datav3.HTTPAccessLogEntry) {
	t.Helper()
	m := &alsv3.StreamAccessLogsMessage{LogEntries: &alsv3.StreamAccessLogsMessage_HttpLogs{
		HttpLogs: &alsv3.StreamAccessLogsMessage_HTTPAccessLogEntries{LogEntry: records},
	}}
	if log != "" {
		m.Identifier = &alsv3.StreamAccessLogsMessage_Identifier{LogName: log}
	}
	if err := stream.Send(m); err != nil {
		t.Fatal(err)
	}
}

// TestR4_EntriesOfStreamsNameTheStream: a request that resumes or cancels a stream says which.
func TestR4_EntriesOfStreamsNameTheStream(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/v1/streams/mine?after=3": "mine", "/v1/streams/a%2Fb/cancel": "a/b", "/v1/streams/": "", "/v1/streams/a/b": "", "/v1/streams/%zz": "",
	} {
		in := &datav3.HTTPAccessLogEntry{
			CommonProperties: &datav3.AccessLogCommon{RouteName: routes.Streams}, Request: &datav3.HTTPRequestProperties{Path: path}}
		if got := entryOf(t, headers.LogRequests, in).ClientID; got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
		in.CommonProperties.RouteName = routes.Models
		if got := entryOf(t, headers.LogRequests, in).ClientID; got != "" {
			t.Errorf("another route: %q", got)
		}
	}
}
