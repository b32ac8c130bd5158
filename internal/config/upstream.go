package config

import (
	"crypto/x509"
	"errors"
	"io"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Upstream is a server that someone else runs. In the file it is a mapping, or its URL alone.
type Upstream struct {
	// URL of the server: http:// or https://, host, port, and the path of its API with or without /v1, such as
	// https://api.example.com/openai/v1. No user or password.
	URL string `yaml:"url" required:"true"`
	// APIKeyEnv is the name of the environment variable that holds the server's key, which goes as "Authorization: Bearer …" on every
	// request. Default: none.
	APIKeyEnv string `yaml:"api_key_env"`
	// Headers are set on every request. ${NAME} in a value is the environment variable of that name.
	Headers map[string]string `yaml:"headers"`
	// CAFile holds the certificates, as PEM, one of which must have signed that of an https server. A path that is not absolute counts from
	// the file's folder. Default: those that the system trusts.
	CAFile string `yaml:"ca_file"`
	// InsecureSkipVerify takes any certificate of an https server: whoever is in between reads and changes everything. Default false.
	InsecureSkipVerify bool `yaml:"insecure_skip_verify"`

	// Sent are the headers with their secrets, the key among them, by names in lower case.
	Sent map[string]string `yaml:"-"`
	// CA is the content of CAFile.
	CA string `yaml:"-"`
}

// server reads an Upstream: a mapping, or its URL alone.
func (d *decoder) server(n *yaml.Node, u *Upstream, at path) {
	if n.Kind == yaml.ScalarNode {
		d.scalar(n, reflect.ValueOf(&u.URL).Elem(), at, rules{})
		return
	}
	d.structure(n, reflect.ValueOf(u).Elem(), at)
}

// knownServer is an upstream that some list of the file has.
type knownServer struct {
	Upstream
	at path
}

// upstreams checks a list of servers and fills in what is not in the file: secrets and certificates.
func (k *checker) upstreams(at path, list []Upstream) {
	var servers []named
	for i := range list {
		u, where := &list[i], at.item(i)
		if !k.upstream(where, u) {
			continue
		}
		id := identity(u.URL)
		servers = append(servers, named{id, where})
		if other, known := k.servers[id]; known && !reflect.DeepEqual(other.Upstream, *u) {
			k.fault(where, "the same server is%s at %s, and is called in another way there", k.onLine(other.at), k.display(other.at))
		}
	}
	k.repeated(servers, "server")
	if k.servers == nil {
		k.servers = map[string]knownServer{}
	}
	for i := range list {
		if id := identity(list[i].URL); k.sound(at.item(i)) {
			k.servers[id] = knownServer{list[i], at.item(i)}
		}
	}
}

// upstream checks one server. Its URL may hold a password, so no message repeats it.
func (k *checker) upstream(at path, u *Upstream) bool {
	where := at
	if k.given(at.field("url")) {
		where = at.field("url")
	}
	if !k.sound(at) || !k.sound(at.field("url")) {
		return false
	}
	found := len(k.faults)
	parsed, ok := k.base(where, u)
	if !ok {
		return false
	}
	if parsed.Scheme == "http" {
		k.noEffect(at.field("ca_file"), "an http:// URL")
		k.noEffect(at.field("insecure_skip_verify"), "an http:// URL")
	} else if u.InsecureSkipVerify {
		k.noEffect(at.field("ca_file"), "insecure_skip_verify: true")
	}
	k.authorities(at.field("ca_file"), u)
	k.sent(at, u)
	return found == len(k.faults)
}

// base checks the URL and writes it back as scheme://host:port and the path without /v1.
func (k *checker) base(at path, u *Upstream) (*url.URL, bool) {
	parsed, err := url.Parse(u.URL)
	if err != nil || parsed.Scheme != "http" && parsed.Scheme != "https" || !validHost(parsed) || parsed.RawQuery != "" || parsed.ForceQuery ||
		parsed.Fragment != "" {
		k.fault(at, "must be a URL such as http://10.0.0.5:8000")
		return nil, false
	}
	if parsed.User != nil {
		k.fault(at, "must not hold a user or password: name the environment variable that holds the key in api_key_env")
		return nil, false
	}
	prefix := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(parsed.EscapedPath(), "/"), "/v1"), "/")
	if steps := strings.Split(strings.TrimPrefix(prefix, "/"), "/"); prefix != "" &&
		(strings.Trim(prefix, plainCharacters+"~") != "" || slices.Contains(steps, "") || slices.Contains(steps, ".") || slices.Contains(steps, "..")) {
		k.fault(at, "must have a plain path, of letters, digits and _ - . / : @ + ~ alone")
		return nil, false
	}
	port := parsed.Port()
	switch {
	case port != "":
	case parsed.Scheme == "https":
		port = "443"
	default:
		port = "80"
	}
	u.URL = parsed.Scheme + "://" + strings.ToLower(strings.TrimSuffix(parsed.Host, ":"+parsed.Port())) + ":" + port + prefix
	return parsed, true
}

// identity is what a server is told by: host, port and path of its URL.
func identity(base string) string {
	_, rest, _ := strings.Cut(base, "://")
	return rest
}

// mostCertificates is the largest file of certificates that is read.
const mostCertificates = 4 << 20

// authorities reads the file of certificates.
func (k *checker) authorities(at path, u *Upstream) {
	if u.CAFile == "" || !k.sound(at) {
		return
	}
	u.CAFile = k.resolve(u.CAFile)
	text, err := certificates(u.CAFile)
	if err != nil {
		k.fault(at, "cannot be used: %s", reasonOf(err))
		return
	}
	u.CA = text
}

func certificates(file string) (string, error) {
	info, err := os.Stat(file)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() || info.Size() > mostCertificates {
		return "", errors.New("it is no file, or a very large one")
	}
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // it was only read
	text, err := io.ReadAll(io.LimitReader(f, mostCertificates))
	if err != nil {
		return "", err
	}
	if !x509.NewCertPool().AppendCertsFromPEM(text) || !utf8.Valid(text) {
		return "", errors.New("it holds no certificate as PEM")
	}
	return string(text), nil
}

// sent fills in the headers that go on every request. No message repeats a value, nor the name of a variable, which may be a key itself
// that was put there by mistake.
func (k *checker) sent(at path, u *Upstream) {
	sent := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(u.Headers)) {
		where, key := at.field("headers").field(name), strings.ToLower(name)
		_, twice := sent[key]
		if fault := headerFault(key, twice, u.APIKeyEnv != ""); fault != "" {
			k.fault(where, "%s", fault)
		} else if value, fault := expand(u.Headers[name]); fault != "" {
			k.fault(where, "%s", fault)
		} else {
			sent[key] = value
		}
	}
	if where := at.field("api_key_env"); k.given(where) && k.sound(where) {
		key, fault := variable(u.APIKeyEnv)
		if fault == "" {
			fault = valueFault(key)
		}
		if fault != "" {
			k.fault(where, "%s", fault)
		}
		sent["authorization"] = "Bearer " + key
	}
	if len(sent) > 0 {
		u.Sent = sent
	}
}

// headerFault says why a header may not be set; empty when it may.
func headerFault(name string, twice, withKey bool) string {
	own := []string{"host", "connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
	switch {
	case name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+-.^_`|~") != "":
		return "cannot be the name of a header"
	case twice:
		return "is there twice: upper and lower case are the same"
	case name == "authorization" && withKey:
		return "is what api_key_env sets: leave one of them out"
	case slices.Contains(own, name) || strings.HasPrefix(name, "x-sluice-") || strings.HasPrefix(name, "x-envoy-") || strings.HasPrefix(name, "x-gateway-"):
		return "is set by Envoy or Sluice"
	}
	return ""
}

// expand puts the environment's variables into a value.
func expand(text string) (value, fault string) {
	value = regexp.MustCompile(`\$\{[^}]*\}?`).ReplaceAllStringFunc(text, func(reference string) string {
		name, closed := strings.CutSuffix(reference[2:], "}")
		if !closed {
			fault = "has ${ without }"
			return ""
		}
		found, why := variable(name)
		if why != "" {
			fault = why
		}
		return found
	})
	if fault == "" {
		fault = valueFault(value)
	}
	return value, fault
}

// variable looks up an environment variable.
func variable(name string) (value, fault string) {
	if !regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`).MatchString(name) {
		return "", "must be the name of an environment variable, never a key itself"
	}
	if value = os.Getenv(name); value == "" {
		return "", "names an environment variable that is not set"
	}
	return value, ""
}

func valueFault(value string) string {
	if !utf8.ValidString(value) || strings.IndexFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) >= 0 ||
		strings.TrimSpace(value) != value {
		return "has a value that no header can have: a line break, a space at an end, or the like"
	}
	return ""
}

// validHost tells whether a URL names an IP address or a host, and a port if any.
func validHost(u *url.URL) bool {
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return false
		}
	} else if strings.HasSuffix(u.Host, ":") {
		return false
	}
	host := u.Hostname()
	if address, err := netip.ParseAddr(host); err == nil {
		return address.Zone() == ""
	}
	return host != "" && strings.Trim(host, plainCharacters[:64]+".") == ""
}
