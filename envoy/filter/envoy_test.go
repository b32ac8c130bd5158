package filter

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// envoyBinary is the real Envoy of the tests: $SLUICE_ENVOY, else the one of "make envoy".
func envoyBinary() string {
	if path := os.Getenv("SLUICE_ENVOY"); path != "" {
		return path
	}
	path, _ := filepath.Abs("../../.tools/envoy")
	return path
}

// testbed is an Envoy with the filter, a peer that decides, and an upstream.
type testbed struct {
	*peer
	url      string
	upstream *upstream
	client   *http.Client
	process  *os.Process
}

// options of the Envoy of a test. The zero value is what most tests want.
type options struct {
	concurrency int
	limit       int // of a body; 0: 1 MiB
	module      string
	logs        string // address of a gRPC access log
	preload     string
}

const config = `
admin: {address: {pipe: {path: "@admin"}}}
static_resources:
  listeners:
  - name: inlets
    address: {pipe: {path: "@inlets", mode: 384}}
    connection_balance_config: {exact_balance: {}}
    filter_chains:
    - filters:
      - name: inlet
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.dynamic_modules.v3.DynamicModuleNetworkFilter
          dynamic_module_config: {name: sluice-filter, do_not_close: true}
          filter_name: sluice
          filter_config: {"@type": type.googleapis.com/google.protobuf.StringValue, value: "SOCKET"}
          terminal_filter: true
  - name: l
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    per_connection_buffer_limit_bytes: 1048576
    filter_chains:
    - filters:
      - name: hcm
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: a
          codec_type: AUTO
          generate_request_id: true
          http_protocol_options: {enable_trailers: true}
          http2_protocol_options: {max_concurrent_streams: 2000}
          upgrade_configs: [{upgrade_type: websocket}]
          access_log: [LOG]
          http_filters:
          - name: sluice
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter
              dynamic_module_config: {name: sluice-filter, do_not_close: true}
              filter_name: sluice
              filter_config: {"@type": type.googleapis.com/google.protobuf.StringValue, value: "SOCKET\nunread x-unread cookie\nresponse x-engine server x-ratelimit-limit-requests request-id x-sluice-source x-sluice-replica"}
          - name: router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
          route_config:
            virtual_hosts:
            - name: a
              domains: ["*"]
              include_request_attempt_count: true
              routes:
              - match: {prefix: /off}
                route: {cluster: model/m, upgrade_configs: [{upgrade_type: websocket}]}
                typed_per_filter_config:
                  sluice: {"@type": type.googleapis.com/envoy.config.route.v3.FilterConfig, disabled: true}
              - name: decided
                match: {prefix: /, headers: [{name: x-sluice-cluster, present_match: true}]}
                request_headers_to_remove: [x-sluice-cluster]
                route: {cluster_header: x-sluice-cluster, timeout: 0s, retry_policy: {retry_on: "5xx", num_retries: 1}}
              - name: undecided
                match: {prefix: /}
                route: {cluster: nowhere}
                request_body_buffer_limit: LIMIT
            validate_clusters: false
  clusters:
  - name: model/m
    type: STATIC
    load_assignment:
      cluster_name: model/m
      endpoints: [{lb_endpoints: [{endpoint: {address: UPSTREAM}, metadata: {filter_metadata: {sluice: {replica: r1}}}}]}]
  - name: logs
    type: STATIC
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment: {cluster_name: logs, endpoints: [{lb_endpoints: [{endpoint: {address: LOGADDRESS}}]}]}
`

const grpcLogConfig = `{name: g, typed_config: {
  "@type": type.googleapis.com/envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig,
  common_config: {log_name: l, transport_api_version: V3, buffer_size_bytes: 0, grpc_service: {envoy_grpc: {cluster_name: logs}},
    custom_tags: [
      {tag: replica, value: "%UPSTREAM_METADATA(sluice:replica)%"},
      {tag: first_byte, value: "%COMMON_DURATION(DS_RX_BEG:US_RX_BODY_BEG:us)%"}]}}}`

func socketAddress(hostport string) string {
	host, port, _ := net.SplitHostPort(hostport)
	return fmt.Sprintf("{socket_address: {address: %s, port_value: %s}}", host, port)
}

// up starts an Envoy with the filter.
func up(t testing.TB, o options) *testbed {
	t.Helper()
	b := &testbed{peer: newPeer(t), upstream: newUpstream(t)}
	dir := filepath.Dir(b.path)
	if os.Getenv(answersVariable) != throughThread {
		b.inlets = filepath.Join(dir, "inlets")
	}
	limit, log := o.limit, ""
	limit = cmp.Or(limit, 1<<20)
	if o.logs == "" {
		o.logs = "127.0.0.1:1"
	} else {
		log = grpcLogConfig
	}
	text := strings.NewReplacer("SOCKET", b.path, "LIMIT", fmt.Sprint(limit), "UPSTREAM", socketAddress(b.upstream.Listener.Addr().String()),
		"LOGADDRESS", socketAddress(o.logs), "[LOG]", "["+log+"]", "@admin", filepath.Join(dir, "admin"), "@inlets", filepath.Join(dir, "inlets")).Replace(config)
	file := filepath.Join(dir, "envoy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if o.module == "" {
		o.module = modules(t)
	}
	b.start(t, o, file)
	b.client = adminClient(filepath.Join(dir, "admin"))
	b.waitForListener(t)
	b.client = &http.Client{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 100}}
	t.Cleanup(b.client.CloseIdleConnections)
	return b
}

// start runs the Envoy until the test ends. An Envoy that ends by itself, as in a crash, fails the
// test.
func (b *testbed) start(t testing.TB, o options, file string) {
	t.Helper()
	var out strings.Builder
	c := exec.Command(envoyBinary(), "-c", file, "--use-dynamic-base-id", "--concurrency", fmt.Sprint(max(1, o.concurrency)), "-l", "warn")
	c.Env = append(os.Environ(), "ENVOY_DYNAMIC_MODULES_SEARCH_PATH="+o.module)
	if o.preload != "" {
		c.Env = append(c.Env, "LD_PRELOAD="+o.preload)
	}
	c.Stderr, c.Stdout = &out, &out
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	b.process = c.Process
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	t.Cleanup(func() {
		select {
		case err := <-ended:
			t.Errorf("Envoy ended by itself: %v", err)
		default:
			_ = c.Process.Signal(syscall.SIGTERM)
			select {
			case err := <-ended:
				if err != nil {
					t.Errorf("Envoy did not end well: %v", err)
				}
			case <-time.After(testTimeout):
				_ = c.Process.Kill()
				<-ended
				t.Error("Envoy did not end")
			}
		}
		if t.Failed() {
			t.Log(out.String())
		}
	})
}

func adminClient(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
}

// ask asks Envoy's admin interface.
func (b *testbed) ask(path string) string {
	r, err := adminClient(filepath.Join(filepath.Dir(b.path), "admin")).Get("http://admin" + path)
	if err != nil {
		return ""
	}
	defer r.Body.Close()
	text, _ := io.ReadAll(r.Body)
	return string(text)
}

func (b *testbed) waitForListener(t testing.TB) {
	t.Helper()
	eventually(t, "Envoy listens", func() bool {
		for line := range strings.Lines(b.ask("/listeners")) {
			if address, ok := strings.CutPrefix(strings.TrimSpace(line), "l::"); ok && !strings.HasSuffix(address, ":0") {
				b.url = "http://" + address
				return strings.TrimSpace(b.ask("/ready")) == "LIVE"
			}
		}
		return false
	})
}

// counter returns a counter of Envoy whose name ends so.
func (b *testbed) counter(name string) string {
	for line := range strings.Lines(b.ask("/stats?usedonly&filter=" + name)) {
		if _, value, ok := strings.Cut(line, ": "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// answer is what a client gets.
type answer struct {
	status int
	body   string
	header http.Header
	err    error
}

// send sends a request, and returns the channel of its answer.
func (b *testbed) send(t testing.TB, method, path, body string, headers ...string) <-chan answer {
	t.Helper()
	return b.sendReader(t, method, path, strings.NewReader(body), headers...)
}

func (b *testbed) sendReader(t testing.TB, method, path string, body io.Reader, headers ...string) <-chan answer {
	t.Helper()
	r, err := http.NewRequest(method, b.url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	done := make(chan answer, 1)
	go func() {
		res, err := b.client.Do(r)
		if err != nil {
			done <- answer{err: err}
			return
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		done <- answer{res.StatusCode, string(text), res.Header, err}
	}()
	return done
}

// got waits for an answer.
func got(t testing.TB, c <-chan answer) answer {
	t.Helper()
	select {
	case a := <-c:
		return a
	case <-time.After(testTimeout):
		t.Fatal("no answer came")
		return answer{}
	}
}

// want waits for an answer with this status.
func want(t testing.TB, c <-chan answer, status int) answer {
	t.Helper()
	a := got(t, c)
	if a.err != nil || a.status != status {
		t.Fatalf("got %d %q, %v; want %d", a.status, a.body, a.err, status)
	}
	return a
}

// seen is what the upstream has got.
type seen struct {
	Method, Path, Body string
	Length             int64
	Header             http.Header
	Trailer            http.Header
}

// upstream answers with what it has got as JSON. A path that begins with /slow waits for release
// after the first byte.
type upstream struct {
	*httptest.Server
	release chan struct{}
}

func newUpstream(t testing.TB) *upstream {
	u := &upstream{release: make(chan struct{})}
	u.Server = httptest.NewServer(http.HandlerFunc(u.serve))
	t.Cleanup(u.Close)
	return u
}

func (u *upstream) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if strings.HasPrefix(r.URL.Path, "/says") {
		u.says(w, r, body)
		return
	}
	if strings.HasPrefix(r.URL.Path, "/slow") {
		fmt.Fprint(w, " ")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-u.release:
		case <-r.Context().Done():
			return
		}
	}
	if strings.HasPrefix(r.URL.Path, "/hold") {
		select {
		case <-u.release:
		case <-r.Context().Done():
			return
		}
	}
	if strings.HasPrefix(r.URL.Path, "/fail") {
		w.WriteHeader(500)
	}
	w.Header().Set("x-engine", "secret")
	for _, name := range []string{"x-sluice-source", "x-sluice-replica", "cache-control"} {
		if said := r.Header.Get("x-says-" + name); said != "" {
			w.Header().Set(name, said)
		}
	}
	w.Header().Set("x-ratelimit-limit-requests", "of the engine")
	w.Header().Set("request-id", "of the engine")
	if len(body) > 1<<16 {
		body = fmt.Append(nil, len(body))
	}
	_ = json.NewEncoder(w).Encode(seen{r.Method, r.URL.Path, string(body), r.ContentLength, r.Header, r.Trailer})
}

// says answers with the body of the request in two parts. Headers ask it for more.
func (u *upstream) says(w http.ResponseWriter, r *http.Request, body []byte) {
	for header, line := range map[string]string{"x-close": "200 OK", "x-switch": "101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade",
		"x-redirect": "308 Permanent Redirect\r\nLocation: http://evil/"} {
		if r.Header.Get(header) == "" {
			continue
		}
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "HTTP/1.1 %s\r\nContent-Type: %s\r\n\r\n%s", line, r.Header.Get("x-type"), body)
		return
	}
	w.Header().Set("Content-Type", r.Header.Get("x-type"))
	if r.Header.Get("x-trailer") != "" {
		w.Header().Set("Trailer", "x-trailer")
		defer w.Header().Set("x-trailer", "1")
	}
	if r.Header.Get("x-hold") != "" {
		<-u.release
	}
	_, _ = w.Write(body[:len(body)/2])
	_ = http.NewResponseController(w).Flush()
	if r.Header.Get("x-pause") != "" {
		<-u.release
	}
	_, _ = w.Write(body[len(body)/2:])
	if r.Header.Get("x-cut") != "" {
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

func (a answer) seen(t testing.TB) seen {
	t.Helper()
	var s seen
	if err := json.Unmarshal([]byte(a.body), &s); err != nil {
		t.Fatalf("%q: %v", a.body, err)
	}
	return s
}
