package envoy

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// adminTimeout bounds one call of the admin interface. Envoy answers from its main thread,
	// which is slow only while it applies a large update.
	adminTimeout = 5 * time.Second
	// maxAdminAnswer is far above the size of /clusters for thousands of replicas.
	maxAdminAnswer = 256 << 20
	// adminListener is the name of the admin interface in Envoy's statistics.
	adminListener = "admin"
)

// Values of ServerState.
const (
	serverLive     = "LIVE"
	serverDraining = "DRAINING"
)

// Admin calls Envoy's admin interface. Its methods may be called at any time. They return an error
// at once if no Envoy listens.
type Admin struct {
	// Socket is the path of the unix socket.
	Socket string
}

// Get fetches a path with its query, such as /clusters?format=json. A status other than 2xx is an
// error.
func (a Admin) Get(ctx context.Context, path string) ([]byte, error) {
	return a.fetch(ctx, http.MethodGet, path)
}

// Post is like Get, for paths that change something, such as /healthcheck/fail.
func (a Admin) Post(ctx context.Context, path string) ([]byte, error) {
	return a.fetch(ctx, http.MethodPost, path)
}

// ServerState returns the state that Envoy reports: LIVE, DRAINING, PRE_INITIALIZING or
// INITIALIZING. /server_info has it too, with 120 KB of other things that Envoy renders for 3 ms.
func (a Admin) ServerState(ctx context.Context) (string, error) {
	status, body, err := a.call(ctx, http.MethodGet, "/ready")
	if err != nil {
		return "", err
	}
	if state := strings.TrimSpace(string(body)); status == http.StatusOK || status == http.StatusServiceUnavailable {
		return state, nil
	}
	return "", refusal("/ready", status, body)
}

// ActiveRequests counts the requests that Envoy has in progress, by cluster and by the address of
// the endpoint. The address is ip:port or the path of a unix socket. Endpoints without requests are
// included with 0.
func (a Admin) ActiveRequests(ctx context.Context) (map[string]map[string]int, error) {
	var answer clusterStatuses
	if err := a.getJSON(ctx, "/clusters?format=json", &answer); err != nil {
		return nil, err
	}
	return answer.activeRequests(), nil
}

// InFlight counts the requests of clients that Envoy has received and not answered completely.
// Requests that ext_proc still holds are included.
func (a Admin) InFlight(ctx context.Context) (int, error) {
	requests, _, err := a.downstream(ctx)
	return requests, err
}

// downstream counts requests as InFlight does, and the connections of clients.
func (a Admin) downstream(ctx context.Context) (requests, connections int, err error) {
	stats, err := a.Stats(ctx, `^http\..*\.downstream_(rq|cx)_active$`)
	for name, value := range stats {
		switch {
		case strings.HasPrefix(name, "http."+adminListener+"."):
		case strings.HasSuffix(name, "rq_active"):
			requests += int(value)
		default:
			connections += int(value)
		}
	}
	return requests, connections, err
}

// listeners returns the IP addresses and ports of Envoy's listeners.
func (a Admin) listeners(ctx context.Context) ([]netip.AddrPort, error) {
	var answer struct {
		Statuses []struct {
			Local struct {
				Socket struct {
					Address string `json:"address"`
					Port    uint16 `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := a.getJSON(ctx, "/listeners?format=json", &answer); err != nil {
		return nil, err
	}
	var all []netip.AddrPort
	for _, l := range answer.Statuses {
		if ip, err := netip.ParseAddr(l.Local.Socket.Address); err == nil { // else it is a unix socket
			all = append(all, netip.AddrPortFrom(ip, l.Local.Socket.Port))
		}
	}
	return all, nil
}

// workers returns the number of Envoy's worker threads.
func (a Admin) workers(ctx context.Context) (int, error) {
	const concurrency = "server.concurrency"
	stats, err := a.Stats(ctx, "^"+concurrency+"$")
	return int(stats[concurrency]), err
}

// CertificateEnd returns when the certificate ends with which Envoy serves. If Envoy still has
// older ones for connections of before, it is the latest end. The zero time means that it has none.
func (a Admin) CertificateEnd(ctx context.Context) (latest time.Time, err error) {
	var answer struct {
		Certificates []struct {
			Chain []struct {
				End time.Time `json:"expiration_time"`
			} `json:"cert_chain"`
		} `json:"certificates"`
	}
	err = a.getJSON(ctx, "/certs", &answer)
	for _, c := range answer.Certificates {
		if len(c.Chain) > 0 && c.Chain[0].End.After(latest) {
			latest = c.Chain[0].End
		}
	}
	return latest, err
}

// Heap returns how many bytes of its heap Envoy uses, as its own limit of memory counts them.
func (a Admin) Heap(ctx context.Context) (int64, error) {
	var answer struct {
		Size     int64 `json:"heap_size,string"`
		Unmapped int64 `json:"pageheap_unmapped,string"`
		Free     int64 `json:"pageheap_free,string"`
	}
	err := a.getJSON(ctx, "/memory", &answer)
	return answer.Size - answer.Unmapped - answer.Free, err
}

// Stats returns the counters and gauges whose names match the regular expression (RE2).
func (a Admin) Stats(ctx context.Context, filter string) (map[string]uint64, error) {
	var answer struct {
		Stats []struct {
			Name  string          `json:"name"`
			Value json.RawMessage `json:"value"`
		} `json:"stats"`
	}
	if err := a.getJSON(ctx, "/stats?format=json&filter="+url.QueryEscape(filter), &answer); err != nil {
		return nil, err
	}
	stats := make(map[string]uint64, len(answer.Stats))
	for _, s := range answer.Stats {
		// Histograms have no name and text readouts have no number. Callers do not ask for them.
		if n, err := strconv.ParseUint(string(s.Value), 10, 64); err == nil && s.Name != "" {
			stats[s.Name] = n
		}
	}
	return stats, nil
}

// getJSON decodes the JSON answer of a path into the value that into points to.
func (a Admin) getJSON(ctx context.Context, path string, into any) error {
	body, err := a.Get(ctx, path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("envoy admin %s: %w", path, err)
	}
	return nil
}

// fetch makes one request and returns the body of the answer, whose status is 2xx.
func (a Admin) fetch(ctx context.Context, method, path string) ([]byte, error) {
	status, body, err := a.call(ctx, method, path)
	if err == nil && status/100 != 2 {
		err = refusal(path, status, body)
	}
	if err != nil {
		return nil, err
	}
	return body, nil
}

// refusal is the error of an answer with another status than the call expects.
func refusal(path string, status int, body []byte) error {
	return fmt.Errorf("envoy admin %s: %d %s: %.200s", path, status, http.StatusText(status), bytes.TrimSpace(body))
}

// call makes one request to the admin interface. Each call has a connection of its own: calls are
// rare, and a kept connection may lead to an Envoy that is gone. The calling goroutine does all,
// because http.Transport would wake up three others, which an idle process pays each second.
func (a Admin) call(ctx context.Context, method, path string) (status int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://envoy"+path, nil)
	if err != nil {
		return 0, nil, err
	}
	req.Close = true
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", a.Socket)
	if err != nil {
		return 0, nil, fmt.Errorf("envoy admin: %w", err)
	}
	defer func() { _ = conn.Close() }()
	// The end of ctx ends reads and writes as well.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	status, body, err = exchange(conn, req)
	if err != nil {
		return 0, nil, fmt.Errorf("envoy admin %s: %w", path, cmp.Or(ctx.Err(), err))
	}
	return status, body, nil
}

// exchange writes a request to a connection and reads the answer.
func exchange(conn net.Conn, req *http.Request) (status int, body []byte, err error) {
	if err := req.Write(conn); err != nil {
		return 0, nil, err
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = res.Body.Close() }()
	body, err = io.ReadAll(io.LimitReader(res.Body, maxAdminAnswer))
	return res.StatusCode, body, err
}

// clusterStatuses is the part of /clusters?format=json that activeRequests needs
// (envoy.admin.v3.Clusters).
type clusterStatuses struct {
	Statuses []struct {
		Name  string `json:"name"`
		Hosts []struct {
			Address struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
				Pipe struct {
					Path string `json:"path"`
				} `json:"pipe"`
			} `json:"address"`
			Stats []struct {
				Name  string `json:"name"`
				Value string `json:"value"`
			} `json:"stats"`
		} `json:"host_statuses"`
	} `json:"cluster_statuses"`
}

// activeRequests returns the active requests by cluster and address.
func (c clusterStatuses) activeRequests() map[string]map[string]int {
	all := make(map[string]map[string]int, len(c.Statuses))
	for _, cluster := range c.Statuses {
		requests := make(map[string]int, len(cluster.Hosts))
		for _, host := range cluster.Hosts {
			address := host.Address.Pipe.Path
			if address == "" {
				address = net.JoinHostPort(host.Address.Socket.Address, strconv.Itoa(host.Address.Socket.Port))
			}
			requests[address] = 0
			for _, s := range host.Stats {
				if n, err := strconv.Atoi(s.Value); err == nil && s.Name == "rq_active" {
					requests[address] = n
				}
			}
		}
		all[cluster.Name] = requests
	}
	return all
}
