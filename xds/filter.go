package xds

import (
	"strings"

	accesslog "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	httpmodules "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/dynamic_modules/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcher "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/envoy/filter"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// filterName is the name of Sluice's own filter in the listener.
const filterName = "sluice.filter"

// Filter is Sluice's own filter inside Envoy, which asks the gateway in the place of ext_proc. The
// zero value: Envoy does not have it.
//
// Path and Bare must not change while an Envoy runs, since the listener depends on them. Decides
// may: it only changes routes.
type Filter struct {
	// Path is the absolute path of the file that Envoy loads. Socket is that of the gateway's unix
	// socket for the filter, at most 107 bytes.
	Path, Socket string
	// Bare says that the filter is one of an earlier version. It understands no more than the name
	// of the socket, and does not decide.
	Bare bool
	// Decides says that the filter asks the gateway. Otherwise ext_proc does.
	Decides bool
}

// in reports whether Envoy has the filter. An Envoy of another host does not: its filter would not
// reach the socket.
func (f Filter) in(c Config) bool { return f.Path != "" && c.node == (node{}) }

// ownFilter returns Sluice's own filter as a list, which is empty if Envoy does not have it.
func ownFilter(c Config) []*hcm.HttpFilter {
	if !c.Filter.in(c) {
		return nil
	}
	return []*hcm.HttpFilter{httpFilter(filterName, &httpmodules.DynamicModuleFilter{
		DynamicModuleConfig: filter.Module(c.Filter.Path),
		FilterName:          filter.Name,
		FilterConfig:        mustPack(wrapperspb.String(c.Filter.Socket + c.Filter.headers())),
	})}
}

// headers returns the lines of the filter's configuration that list the headers that do not cross
// the gateway.
func (f Filter) headers() string {
	if f.Bare {
		return ""
	}
	ofEngines := append(headers.StrippedFromEngines(), headers.Source, headers.Replica) // the filter sets these two
	return "\nunread " + strings.Join(headers.Unread(), " ") + "\nresponse " + strings.Join(ofEngines, " ")
}

// strips reports whether Sluice's own filter removes the headers that the gateway does not read
// from the requests that it decides, and those of engines from their responses. The filter then
// also sets all headers that the gateway adds to a response. Otherwise the routes do both.
func (f Filter) strips(c Config) bool { return f.in(c) && f.Decides }

// deciders lists the filters that ask the gateway about requests.
func deciders(c Config) []string {
	if c.Filter.in(c) {
		return []string{filterName, extProcName}
	}
	return []string{extProcName}
}

// idle lists the filters that have nothing to do for a request that the gateway decides. These are
// the one that could ask it and does not, and those that Sluice's own filter makes needless.
func idle(c Config) []string {
	switch {
	case !c.Filter.in(c):
		return nil
	case c.Filter.Decides:
		return []string{extProcName, onDemandName, customResponseName}
	}
	return []string{filterName}
}

// untold matches the requests of which the filter does not tell the gateway: those without the
// value, and those with 0.
func untold() *accesslog.AccessLogFilter {
	told := &matcher.MetadataMatcher{
		Filter: headers.Metadata, Path: []*matcher.MetadataMatcher_PathSegment{{
			Segment: &matcher.MetadataMatcher_PathSegment_Key{Key: headers.MetadataTold}}},
		Value: &matcher.ValueMatcher{MatchPattern: &matcher.ValueMatcher_StringMatch{StringMatch: exactly("0")}},
	}
	return &accesslog.AccessLogFilter{FilterSpecifier: &accesslog.AccessLogFilter_MetadataFilter{
		MetadataFilter: &accesslog.MetadataFilter{Matcher: told, MatchIfKeyNotFound: wrapperspb.Bool(true)},
	}}
}
