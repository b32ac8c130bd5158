package config

import (
	"net/netip"
	"net/url"
	"regexp"
	"time"
)

// Moderation is one rule for what answers may not say. An answer that does ends there, with finish_reason content_filter, and its engine is
// stopped.
type Moderation struct {
	// Name of the rule, for logs and metrics.
	Name string `yaml:"name" required:"true"`
	// Models whose answers it is for, by name or alias; "*" is all. Default ["*"].
	Models []string `yaml:"models" default:"[\"*\"]"`
	// Tenants whose answers it is for; "*" is all. Default ["*"].
	Tenants []string `yaml:"tenants" default:"[\"*\"]"`
	// Literals are texts of which nothing may be sent: what may be the beginning of one is held back until more has come.
	Literals []string `yaml:"literals"`
	// Patterns are regular expressions (RE2) that end an answer where they match. What came before the end of the match has been sent.
	Patterns []string `yaml:"patterns"`
	// IgnoreCase is for literals and patterns. Default false.
	IgnoreCase bool `yaml:"ignore_case"`
	// Window is the longest text that a pattern may match, in bytes. Default 4KiB.
	Window Size `yaml:"window" default:"4KiB" least:"1"`
	// Hook is a service that is asked about the text. Default: none is.
	Hook *ModerationHook `yaml:"hook"`

	// Compiled are the patterns.
	Compiled []*regexp.Regexp `yaml:"-"`
}

// ModerationHook is a service that judges text: see package internal/relay/moderation for what it is asked and how it answers.
type ModerationHook struct {
	// URL that is posted to.
	URL string `yaml:"url" required:"true"`
	// Timeout of one question; the answer's next events wait for it. Default 1s.
	Timeout time.Duration `yaml:"timeout" default:"1s" least:"1ms"`
	// OnFailure says what happens when the service gives no answer: block or allow. Default block.
	OnFailure OnFailure `yaml:"on_failure" default:"block" oneof:"block,allow"`
	// Every is how much new text there is between two questions, in bytes. Default 512.
	Every Size `yaml:"every" default:"512" least:"1"`
}

// OnFailure is what happens when nobody judges.
type OnFailure string

// The values of OnFailure.
const (
	// Block ends the answer.
	Block OnFailure = "block"
	// Allow lets it go on.
	Allow OnFailure = "allow"
)

// Tracing says where spans go.
type Tracing struct {
	// Endpoint is the URL of a collector that takes OTLP over HTTP, such as http://127.0.0.1:4318.
	Endpoint string `yaml:"endpoint" required:"true"`
	// Sample is the share of requests that are followed, from 0 to 1, of those whose client did not decide it by its traceparent header. Default
	// 0.01.
	Sample float64 `yaml:"sample" default:"0.01" least:"0"`
}

// moderation checks the rules and compiles their patterns.
func (k *checker) moderation() {
	for i := range k.config.Moderation {
		m, at := &k.config.Moderation[i], path{"moderation"}.item(i)
		for j, model := range m.Models {
			if model != "*" {
				k.tenantModel(at.field("models").item(j), model, append(k.modelNames(), k.poolNames()...))
			}
			m.Models[j] = k.config.ModelName(model)
		}
		for j, name := range m.Tenants {
			if where := at.field("tenants").item(j); name != "*" && !k.isTenant(name) && k.sound(where) {
				k.fault(where, "there is no tenant %s", shown(name))
			}
		}
		for j, text := range m.Patterns {
			where := at.field("patterns").item(j)
			re, err := regexp.Compile(text)
			if err != nil && k.sound(where) {
				k.fault(where, "is no regular expression: %v", err)
				continue
			}
			m.Compiled = append(m.Compiled, re)
		}
		if m.Hook != nil {
			k.webAddress(at.field("hook").field("url"), m.Hook.URL)
		}
		if len(m.Literals)+len(m.Patterns) == 0 && m.Hook == nil && k.sound(at) {
			k.fault(at, "forbids nothing: give it literals, patterns or a hook")
		}
	}
	if t := k.config.Tracing; t != nil {
		k.webAddress(path{"tracing", "endpoint"}, t.Endpoint)
		k.share(path{"tracing", "sample"}, t.Sample)
	}
}

func (k *checker) isTenant(name string) bool {
	for _, t := range k.config.Tenants {
		if t.Name == name {
			return true
		}
	}
	return false
}

// webAddress checks a URL that is called.
func (k *checker) webAddress(at path, text string) {
	if !k.sound(at) || text == "" {
		return
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Fragment != "" {
		k.fault(at, "must be a URL such as http://127.0.0.1:9000/path")
	}
}

// share checks a part of a whole.
func (k *checker) share(at path, v float64) {
	if v > 1 && k.sound(at) {
		k.fault(at, "must be between 0 and 1, is %v", v)
	}
}

// streams checks how a model's responses are carried.
func (k *checker) stream(at path, m *Model) {
	s := &m.Stream
	k.share(at.field("sample"), s.Sample)
	if s.Mode != StreamNative {
		return
	}
	for _, field := range []string{"heartbeat", "heartbeat_as", "resume", "ttft_timeout", "stall_timeout", "inject_usage", "sample"} {
		k.noEffect(at.field(field), "mode: native")
	}
}

// managed checks that a model whose requests Sluice has to carry is not to be carried by Envoy alone.
func (k *checker) managed(at path, m *Model) {
	mode := at.field("stream").field("mode")
	if m.Stream.Mode == StreamNative && m.Protocol == ProtocolGRPC && k.sound(mode) {
		k.fault(mode, "cannot be native with protocol: grpc, which Sluice has to translate")
	}
}

// peers checks where other gateways reach this one.
func (k *checker) peers(others ...netip.AddrPort) {
	at := path{"peers"}
	if k.config.Peers == "" {
		return
	}
	address, ok := k.address(at, &k.config.Peers)
	if !ok {
		return
	}
	for _, other := range others {
		if address.Port() == other.Port() && (address.Addr() == other.Addr() || address.Addr().IsUnspecified() || other.Addr().IsUnspecified()) {
			k.fault(at, "%s is taken by another listener (%s): choose another port", address, other)
			return
		}
	}
	switch {
	case k.config.Redis == "" && k.sound(path{"redis"}):
		k.fault(at, "has no effect without redis, by which gateways find each other")
	case address.Addr().IsUnspecified():
		k.fault(at, "must name the address that the other gateways reach this one by, and not all addresses")
	}
}
