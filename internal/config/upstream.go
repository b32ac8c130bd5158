package config

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Upstream is a server that someone else runs. In the file it is a mapping, or the URL alone.
type Upstream struct {
	// URL is the URL of the server: http:// or https://, host, port, and the path of its API with
	// or without /v1, such as https://api.example.com/openai/v1. It holds no user and no password.
	// Entries of one URL with other keys, other headers or another api_path are servers of their
	// own.
	URL string `yaml:"url" required:"true" form:"base_url"`
	// Model is the name under which this server knows the model, such as Qwen/Qwen2.5-7B-Instruct.
	// Requests to the server have it in their bodies. A request is not tried again at a server with
	// another name. It is for the upstreams of a model. Default: the model's own name.
	Model string `yaml:"model"`
	// APIPath is where the server has OpenAI's API, below the path of url, such as /v1beta/openai.
	// "/" is the path of url itself. Default: /v1.
	APIPath string `yaml:"api_path" form:"absolute"`
	// APIKeyEnv is the name of the environment variable that holds the server's key. The key is
	// sent as "Authorization: Bearer …" with every request. Default: empty, no key is sent.
	APIKeyEnv string `yaml:"api_key_env" form:"variable"`
	// Headers are set on every request. ${NAME} in a value is replaced by the environment variable
	// of that name.
	Headers map[string]string `yaml:"headers"`
	// CAFile is the path of a PEM file with certificates, one of which must have signed the
	// certificate of an https server. A relative path counts from the folder of the file. Default:
	// the certificates that the system trusts.
	CAFile string `yaml:"ca_file"`
	// InsecureSkipVerify accepts any certificate of an https server. Anyone on the network path can
	// then read and change everything. Default false.
	InsecureSkipVerify bool `yaml:"insecure_skip_verify"`
	// Join makes the server a replica of each model of the configuration that it lists by name,
	// beside the model's own replicas. Without it, such a model is a clash and the server gets no
	// requests for it. It is for the list upstreams at the top of the file. Default false.
	Join bool `yaml:"join"`
	// Models says which of the server's models are discovered: names, in which * stands for any
	// characters, such as qwen*. It is for the list upstreams at the top of the file. Default: all.
	Models []string `yaml:"models"`
	// Slots is how many requests the server works on at the same time, over all its models. Further
	// requests wait in the gateway. Default 0: Sluice asks the server. One that does not tell gets
	// the usual number of its engine, and 1 if its engine is not known.
	Slots int `yaml:"slots" min:"0" max:"1000000"`
	// Resolve is first or all. With first, the first address of the URL's host name is the server.
	// With all, each address is a server of its own, such as the pods of a headless Service. With
	// all, the addresses are followed. All of them have the same settings. Default first.
	Resolve Resolve `yaml:"resolve" oneof:"first,all"`
	// Health says how Sluice finds out that the server is alive.
	Health UpstreamHealth `yaml:"health"`

	// Variant tells the server from the first one of its URL, which has another key, other headers
	// or another path of its API. It holds no secret. It is empty for the first one.
	Variant string `yaml:"-"`
	// RequestHeaders are Headers with the environment variables filled in, and the authorization
	// header made of APIKeyEnv, by names in lower case. They contain secrets. nil: none.
	RequestHeaders map[string]string `yaml:"-"`
	// CA is the content of CAFile.
	CA string `yaml:"-"`
}

// Server is the name of the server, in the form of a URL: its URL, with the Variant as the
// fragment.
func (u *Upstream) Server() string {
	if u.Variant == "" {
		return u.URL
	}
	return u.URL + "#" + u.Variant
}

// Resolve says which addresses of a host name are servers.
type Resolve string

// The values of Resolve.
const (
	// ResolveFirst makes the first address the server.
	ResolveFirst Resolve = "first"
	// ResolveAll makes each address a server of its own.
	ResolveAll Resolve = "all"
)

// UpstreamHealth says how Sluice finds out that a server is alive. It asks every ten seconds.
type UpstreamHealth struct {
	// Path is the path of a GET that the healthy server answers with a status from 200 to 399, such
	// as /healthz. It counts from the path of url, without /v1. Default: the list of models; for a
	// server that has none, the first of /health, /info and / that it has.
	Path string `yaml:"path" form:"absolute"`
}

// maxServedModel is the length of the longest name of a model on a server, in bytes.
const maxServedModel = 500

// servedModelFault says why name cannot be the name of a model on a server; empty when it can.
func servedModelFault(name string) string {
	control := func(r rune) bool { return unicode.IsControl(r) || r == utf8.RuneError }
	switch {
	case name == "" || strings.TrimSpace(name) != name || strings.ContainsFunc(name, control):
		return "must be the model's name on this server, without control characters and without spaces at its ends"
	case len(name) > maxServedModel:
		return "is longer than " + strconv.Itoa(maxServedModel) + " bytes"
	}
	return ""
}

// checkServedModel checks the name of a model on a server, if the file sets one.
func (k *checker) checkServedModel(at path, name string) {
	if !k.isSet(at) || !k.valid(at) {
		return
	}
	if fault := servedModelFault(name); fault != "" {
		k.faultf(at, "%s", fault)
	}
}

// maxCertificatesSize is the size of the largest file of certificates that is read, in bytes.
const maxCertificatesSize = 4 << 20

// readCertificates returns the content of a PEM file that holds at least one certificate. An error
// has the path of the file.
func readCertificates(file string) (string, error) {
	text, err := readRegular(file, maxCertificatesSize)
	if err == nil && (!x509.NewCertPool().AppendCertsFromPEM(text) || !utf8.Valid(text)) {
		err = errors.New("it holds no certificate in PEM format")
	}
	if err != nil {
		return "", fmt.Errorf("%s: %s", file, reasonOf(err))
	}
	return string(text), nil
}

// expandEnvironment replaces each ${NAME} in text by the environment variable NAME. fault says what
// is wrong with text; it never repeats a value.
func expandEnvironment(text string) (value, fault string) {
	value = regexp.MustCompile(`\$\{[^}]*\}?`).ReplaceAllStringFunc(text, func(reference string) string {
		name, closed := strings.CutSuffix(reference[2:], "}")
		if !closed {
			fault = "has ${ without }: write the name of an environment variable as ${NAME}"
			return ""
		}
		found, why := environmentVariable(name)
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

// environmentVariable returns the value of an environment variable. fault does not repeat the name,
// because it may be a key that was written there by mistake.
func environmentVariable(name string) (value, fault string) {
	if !isVariableName(name) {
		return "", "must be the name of an environment variable, never a key itself"
	}
	if value = os.Getenv(name); value == "" {
		return "", "names an environment variable that is not set or empty: set it before Sluice starts"
	}
	return value, ""
}

// isVariableName reports whether name can be the name of an environment variable in a shell.
func isVariableName(name string) bool {
	return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`).MatchString(name)
}

// valueFault says why value cannot be the value of a header; empty when it can.
func valueFault(value string) string {
	control := func(r rune) bool { return r < ' ' || r == 0x7f }
	switch {
	case !utf8.ValidString(value):
		return "has a value that is not UTF-8, so it cannot be a header"
	case strings.IndexFunc(value, control) >= 0:
		return "has a value with a line break or another control character, so it cannot be a header"
	case strings.TrimSpace(value) != value:
		return "has a value with a space at its beginning or end, so it cannot be a header"
	}
	return ""
}

// headerFault says why the file may not set the header name; empty when it may. name is in lower
// case. repeated tells that the header was set already, and withKey that api_key_env is set.
func headerFault(name string, repeated, withKey bool) string {
	reserved := []string{"host", "connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
	reservedPrefixes := []string{"x-sluice-", "x-envoy-", "x-gateway-"}
	hasPrefix := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
	switch {
	case name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+-.^_`|~") != "":
		return "cannot be the name of a header: use letters, digits and -"
	case repeated:
		return "is given twice, as names of headers ignore case: remove one of them"
	case name == "authorization" && withKey:
		return "is also set by api_key_env: remove one of them"
	case slices.Contains(reserved, name) || slices.ContainsFunc(reservedPrefixes, hasPrefix):
		return "is set by Envoy or Sluice: remove it"
	}
	return ""
}
