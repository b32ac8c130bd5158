package config

import (
	"cmp"
	"maps"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
)

// knownUpstream is an upstream that a list of the file has, and its path.
type knownUpstream struct {
	Upstream
	at path
}

// checkUpstreams checks a list of servers and fills in what the file only refers to: secrets and
// certificates.
func (k *checker) checkUpstreams(at path, list []Upstream) {
	var servers []named
	for i := range list {
		u, where := &list[i], at.item(i)
		if !k.checkUpstream(where, u) {
			continue
		}
		first, id := k.firstOf(u, where), serverID(u.Server())
		inList := slices.ContainsFunc(servers, func(s named) bool { return s.name == id })
		servers = append(servers, named{id, where})
		if !inList && !first.hasSettingsOf(*u) {
			k.faultf(where, "the same server is%s at %s, with other settings: give it the same ones here", k.onLine(first.at), k.display(first.at))
		}
	}
	k.checkRepeated(servers, "server")
}

// firstOf sets u.Variant and returns the first entry of that server, which may be u.
func (k *checker) firstOf(u *Upstream, at path) knownUpstream {
	id := serverID(u.URL)
	known := k.knownUpstreams[id]
	for _, first := range known {
		if first.isSameServer(u) {
			u.Variant = first.Variant
			return first
		}
	}
	isTaken := func() bool {
		return slices.ContainsFunc(known, func(o knownUpstream) bool { return o.Variant == u.Variant })
	}
	if isTaken() {
		u.Variant = cmp.Or(u.APIKeyEnv, "2")
	}
	for n := 2; isTaken(); n++ {
		u.Variant = strings.TrimPrefix(u.APIKeyEnv+"-"+strconv.Itoa(n), "-")
	}
	if k.knownUpstreams == nil {
		k.knownUpstreams = map[string][]knownUpstream{}
	}
	first := knownUpstream{*u, at}
	k.knownUpstreams[id] = append(known, first)
	return first
}

// isSameServer reports whether both entries are of one server. Servers of one URL differ in what
// their requests have: a key, headers, or the path of the API. A port has only one scheme.
func (u knownUpstream) isSameServer(other *Upstream) bool {
	return u.URL != other.URL || u.APIPath == other.APIPath && maps.Equal(u.RequestHeaders, other.RequestHeaders)
}

// hasSettingsOf reports whether both entries of a server call it in the same way. Join, Model and
// Models are not about the server: they say what its models are for this entry. APIKeyEnv and
// Headers may be written in several ways.
func (u knownUpstream) hasSettingsOf(other Upstream) bool {
	other.Join, other.Model, other.Models = u.Join, u.Model, u.Models
	other.APIKeyEnv, other.Headers = u.APIKeyEnv, u.Headers
	return reflect.DeepEqual(u.Upstream, other)
}

// checkUpstream checks one server. Its URL may contain a password, so no message repeats the URL.
func (k *checker) checkUpstream(at path, u *Upstream) bool {
	where := at
	if k.isSet(at.field("url")) {
		where = at.field("url")
	}
	if !k.valid(at) || !k.valid(at.field("url")) {
		return false
	}
	before := len(k.faults)
	k.checkAPIPath(at.field("api_path"), u)
	parsed, ok := k.normaliseURL(where, u)
	if !ok {
		return false
	}
	if parsed.Scheme == "http" {
		k.rejectSet(at.field("ca_file"), "an http:// URL")
		k.rejectSet(at.field("insecure_skip_verify"), "an http:// URL")
	} else if u.InsecureSkipVerify {
		k.rejectSet(at.field("ca_file"), "insecure_skip_verify: true")
	}
	u.Resolve = cmp.Or(u.Resolve, ResolveFirst)
	k.checkModelPatterns(at.field("models"), u.Models)
	k.checkProbePath(at.field("health").field("path"), u.Health.Path)
	k.loadCA(at.field("ca_file"), u)
	k.resolveHeaders(at, u)
	return before == len(k.faults)
}

func (k *checker) checkProbePath(at path, text string) {
	if _, err := url.ParseRequestURI(text); k.isSet(at) && k.valid(at) && (err != nil || text[0] != '/' || strings.ContainsAny(text, " #")) {
		k.faultf(at, "must be a path that begins with /, such as /health, is %s", quoted(text))
	}
}

// checkAPIPath checks where a server has OpenAI's API. Without a fault, /v1 becomes empty.
func (k *checker) checkAPIPath(at path, u *Upstream) {
	if !k.isSet(at) || !k.valid(at) || u.APIPath == "/" {
		return
	}
	u.APIPath = strings.TrimSuffix(u.APIPath, "/")
	switch {
	case u.APIPath == "" || u.APIPath[0] != '/' || !plainPath(u.APIPath):
		k.faultf(at, "must be a path such as /v1beta/openai: letters, digits and _ - . / : @ + ~ only, without empty steps, . and ..")
	case u.APIPath == "/v1":
		u.APIPath = ""
	}
}

// normaliseURL checks the URL of u and rewrites it as scheme://host:port and the path without /v1.
func (k *checker) normaliseURL(at path, u *Upstream) (*url.URL, bool) {
	parsed, err := url.Parse(u.URL)
	if err == nil && isNoPort(parsed.Port()) {
		k.faultf(at, "must have a port from 1 to 65535, is %s", quoted(parsed.Port()))
		return nil, false
	}
	if err != nil || parsed.Scheme != "http" && parsed.Scheme != "https" || !validHost(parsed) || parsed.RawQuery != "" || parsed.ForceQuery ||
		parsed.Fragment != "" {
		k.faultf(at, "must be a URL such as http://10.0.0.5:8000")
		return nil, false
	}
	if parsed.User != nil {
		k.faultf(at, "must not hold a user or password: name the environment variable that holds the key in api_key_env")
		return nil, false
	}
	prefix, ends := strings.CutSuffix(strings.TrimSuffix(parsed.EscapedPath(), "/"), "/v1")
	if prefix = strings.TrimSuffix(prefix, "/"); ends && u.APIPath != "" {
		k.faultf(at, "must not end with /v1 beside api_path, which stands in its place")
		return nil, false
	}
	if !plainPath(prefix) {
		k.faultf(at, "must have a path of letters, digits and _ - . / : @ + ~ only, without empty steps, . and ..")
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

// plainPath tells whether prefix is empty or a path that needs no escaping and no resolving.
func plainPath(prefix string) bool {
	if prefix == "" {
		return true
	}
	steps := strings.Split(strings.TrimPrefix(prefix, "/"), "/")
	special := func(step string) bool { return step == "" || step == "." || step == ".." }
	return strings.Trim(prefix, engines.NameCharacters+"~") == "" && !slices.ContainsFunc(steps, special)
}

// serverID identifies the servers of a URL: host, port and path. The scheme is left out, as one
// port cannot serve both.
func serverID(base string) string {
	_, rest, _ := strings.Cut(base, "://")
	return rest
}

// loadCA reads the file of certificates into u.CA.
func (k *checker) loadCA(at path, u *Upstream) {
	if u.CAFile == "" || !k.valid(at) {
		return
	}
	u.CAFile = k.absolutePath(u.CAFile)
	text, err := readCertificates(u.CAFile)
	if err != nil {
		k.faultf(at, "cannot be used: %v", err)
		return
	}
	u.CA = text
}

// resolveHeaders sets u.RequestHeaders. No message repeats a value or the name of a variable,
// because a key may have been written there by mistake.
func (k *checker) resolveHeaders(at path, u *Upstream) {
	headers := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(u.Headers)) {
		where, key := at.field("headers").field(name), strings.ToLower(name)
		_, repeated := headers[key]
		if fault := headerFault(key, repeated, u.APIKeyEnv != ""); fault != "" {
			k.faultf(where, "%s", fault)
		} else if value, fault := expandEnvironment(u.Headers[name]); fault != "" {
			k.faultf(where, "%s", fault)
		} else {
			headers[key] = value
		}
	}
	if where := at.field("api_key_env"); k.isSet(where) && k.valid(where) {
		key, fault := environmentVariable(u.APIKeyEnv)
		if fault == "" {
			fault = valueFault(key)
		}
		if fault != "" {
			k.faultf(where, "%s", fault)
		}
		headers["authorization"] = "Bearer " + key
	}
	if len(headers) > 0 {
		u.RequestHeaders = headers
	}
}

// validHost tells whether a URL has an IP address or a host name, and a valid port if it has any.
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
	return host != "" && strings.Trim(host, engines.LettersAndDigits+"_-.") == ""
}
