package gateway

import (
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/upstream"
	"github.com/sluice-gateway/sluice/internal/admin"
)

// upstreamViews returns the servers that someone else runs, for the admin listener.
func (g *Gateway) upstreamViews() []admin.Upstream {
	var list []admin.Upstream
	for _, s := range g.launchers.upstream.Servers() {
		list = append(list, upstreamView(s))
	}
	return list
}

func upstreamView(s upstream.Status) admin.Upstream {
	v := admin.Upstream{
		URL: s.URL, Replica: s.Replica, Addresses: s.Addresses, Reason: s.Fault, Since: &s.Since, Discovered: s.Discovered,
		List: !s.NoList, Listed: s.Listed, ListedCount: s.ListedCount, Serves: s.Serves, Filtered: s.Filtered,
		Clashes: s.Clashes, Refused: s.Refused,
	}
	if s.Address.IsValid() {
		v.Address = s.Address.String()
	}
	switch {
	case !s.Checked:
		v.State = string(engines.Starting)
	case s.Fault != "":
		v.State = string(engines.Failed)
	default:
		v.State = string(engines.Ready)
	}
	return v
}
