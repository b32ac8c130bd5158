package config

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Moderation is one rule about forbidden content of answers. Every string of an answer is judged,
// at every endpoint. A choice that breaks the rule ends with finish_reason content_filter; an
// answer without choices is refused with 403 content_filter. What the rule cannot read is 502.
type Moderation struct {
	// Name is the name of the rule in logs and metrics.
	Name string `yaml:"name" required:"true"`
	// Models are the models that the rule applies to, by name or alias; a pool stands for its
	// models, "*" is all. Default ["*"].
	Models []string `yaml:"models" default:"[\"*\"]"`
	// Tenants are the tenants that the rule applies to; "*" is all. Default ["*"].
	Tenants []string `yaml:"tenants" default:"[\"*\"]"`
	// Literals are texts of which no part may be sent. Text that may be the beginning of a literal
	// is held back until more text has come.
	Literals []string `yaml:"literals"`
	// Patterns are regular expressions (RE2). An answer ends at the first match; the text before
	// the end of the match has been sent.
	Patterns []string `yaml:"patterns"`
	// IgnoreCase ignores the case of letters in literals and patterns. Default false.
	IgnoreCase bool `yaml:"ignore_case"`
	// Window is the longest text that a pattern may match, in bytes. Default 4KiB.
	Window Size `yaml:"window" default:"4KiB" min:"1"`
	// Hook is a service that judges the text. Default: absent, no service is asked.
	Hook *ModerationHook `yaml:"hook"`

	// Compiled are the compiled Patterns.
	Compiled []*regexp.Regexp `yaml:"-"`
}

// ModerationHook is a service that judges text. Package internal/relay/moderation documents its
// requests and responses.
type ModerationHook struct {
	// URL is the URL that text is posted to. docs/streams.md has the form of question and answer.
	URL string `yaml:"url" required:"true" form:"url"`
	// Timeout is how long one call of the service may take. The next events of the answer wait for
	// the call. Default 1s.
	Timeout time.Duration `yaml:"timeout" default:"1s" min:"1ms"`
	// OnFailure says what happens when a call of the service fails: block (the answer ends) or
	// allow (it continues). Default block.
	OnFailure OnFailure `yaml:"on_failure" default:"block" oneof:"block,allow"`
	// Every is the amount of new text between two calls, in bytes. Default 512.
	Every Size `yaml:"every" default:"512" min:"1"`
}

// OnFailure says what happens to an answer when a call of the moderation service fails.
type OnFailure string

// The values of OnFailure.
const (
	// Block ends the answer.
	Block OnFailure = "block"
	// Allow lets the answer continue.
	Allow OnFailure = "allow"
)

// checkModeration checks the rules and compiles their patterns.
func (k *checker) checkModeration() {
	for i := range k.config.Moderation {
		m, at := &k.config.Moderation[i], path{"moderation"}.item(i)
		k.checkModerationScope(at, m)
		k.compilePatterns(at.field("patterns"), m)
		if m.Hook != nil {
			k.checkURL(at.field("hook").field("url"), m.Hook.URL)
		}
		if len(m.Literals)+len(m.Patterns) == 0 && m.Hook == nil && k.valid(at) {
			k.faultf(at, "forbids nothing: add literals, patterns or a hook, or remove the rule")
		}
	}
}

// checkModerationScope checks the models and tenants of a rule. It replaces aliases and pools by
// the names of their models, because a model of the pool answers.
func (k *checker) checkModerationScope(at path, m *Moderation) {
	var models []string
	for j, model := range m.Models {
		if model != "*" {
			k.checkModelName(at.field("models").item(j), model, append(k.modelNames(), k.poolNames()...))
		}
		models = append(models, k.config.modelsOf(model)...)
	}
	m.Models = models
	tenants := k.tenantNames()
	for j, name := range m.Tenants {
		if where := at.field("tenants").item(j); name != "*" && !slices.Contains(tenants, name) && k.valid(where) {
			k.faultf(where, "there is no tenant %s; %s", quoted(name), suggest(name, append(tenants, `"*"`)))
		}
	}
}

func (k *checker) compilePatterns(at path, m *Moderation) {
	for i, text := range m.Patterns {
		re, err := regexp.Compile(text)
		if err != nil && k.valid(at.item(i)) {
			k.faultf(at.item(i), "must be a regular expression (RE2): %v", err)
			continue
		}
		m.Compiled = append(m.Compiled, re)
	}
}

func (k *checker) checkTracing() {
	if t := k.config.Tracing; t != nil {
		k.checkURL(path{"tracing", "endpoint"}, t.Endpoint)
		k.checkShare(path{"tracing", "sample"}, t.Sample)
		k.checkTraceURL(path{"tracing", "trace_url"}, t.TraceURL)
	}
}

// checkTraceURL checks the address at which a person sees a trace.
func (k *checker) checkTraceURL(at path, text string) {
	if !k.valid(at) || text == "" {
		return
	}
	u, err := url.Parse(strings.ReplaceAll(text, traceID, "0"))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || !strings.Contains(text, traceID) {
		k.faultf(at, "must be a URL with "+traceID+" in it, such as https://jaeger.example.com/trace/{trace_id}")
	}
}

// traceID is the place of the id in tracing.trace_url.
const traceID = "{trace_id}"

// checkURL checks the URL of a service that Sluice calls.
func (k *checker) checkURL(at path, text string) {
	if !k.valid(at) || text == "" {
		return
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Fragment != "" {
		k.faultf(at, "must be a URL such as http://127.0.0.1:9000/path")
	}
}

// checkShare checks that v is at most 1. That v is at least 0 is checked by its tag.
func (k *checker) checkShare(at path, v float64) {
	if v > 1 && k.valid(at) {
		k.faultf(at, "must be between 0 and 1, is %v", v)
	}
}
