package xds

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
)

// acks are what Envoys have acknowledged, on the streams whose Envoys matter. A replica may be
// picked when each Envoy that counts has it: a request may come through any of them.
//
// An Envoy counts when it has acknowledged a whole configuration. An Envoy that starts, or that
// comes from another gateway, would otherwise take replicas away from all others for a moment. The
// newest Envoy of this host always counts, even while its stream is broken, since it goes on with
// what it has. A predecessor counts until its successor has a whole configuration. An Envoy of
// another host that breaks off has gone to another gateway. The last one counts until another one
// comes.
type acks struct {
	// local is the stream of the Envoy of this host that counts, open or closed; nil: there was
	// none. It is that of a predecessor until another one has a whole configuration.
	local *stream
	// locals are the open streams of Envoys of this host, in the order in which they were opened.
	locals []*stream
	// remote are the open streams of Envoys of other hosts. last says what may be picked while none
	// of them counts: it is the last stream that has counted and has ended. Until there is one, it
	// is the first that was opened, or the last that has ended.
	remote map[*stream]struct{}
	last   *stream
	// left says when the last stream from a host has ended. It lacks hosts with an open one.
	left map[string]time.Time
	// told is the last argument of OnAck by cluster, if that was not nil.
	told map[string]map[string]netip.AddrPort
}

func newAcks() acks {
	return acks{remote: map[*stream]struct{}{}, left: map[string]time.Time{}, told: map[string]map[string]netip.AddrPort{}}
}

// Routable returns the replicas that may be picked, by cluster and id.
func (s *Server) Routable() map[string]map[string]netip.AddrPort {
	s.ackMu.Lock()
	defer s.ackMu.Unlock()
	return maps.Clone(s.acks.told)
}

// Inherit makes the replicas that an earlier process of this gateway could pick (Routable) those of
// this one, until an Envoy counts. It is for a gateway whose Envoys run on other hosts: they may
// send requests here before their xDS comes here, or goes to another gateway. It does nothing once
// an Envoy has connected.
func (s *Server) Inherit(routable map[string]map[string]netip.AddrPort) {
	s.ackMu.Lock()
	defer s.ackMu.Unlock()
	if s.acks.local != nil || s.acks.last != nil {
		return
	}
	s.acks.last = newStream(s, nil)
	s.acks.last.counts = true
	for cluster, replicas := range routable {
		s.acks.last.acked[cluster] = &Resource{Name: cluster, replicas: nonNil(replicas)}
	}
	s.tellAllLocked()
}

// add adds an open stream. Until Envoy reports what it has, a stream that takes the place of
// another one has what that one had.
func (a *acks) add(st *stream) {
	if st.remote == nil {
		a.addLocal(st)
		return
	}
	if before := a.last; before != nil && len(a.remote) == 0 {
		st.acked, st.refused = maps.Clone(before.acked), before.refused
	}
	if a.last == nil || !a.last.counts && len(a.remote) == 0 {
		a.last = st
	}
	a.remote[st] = struct{}{}
	delete(a.left, st.remote.host())
}

// addLocal adds an open stream of this host. It counts at once if the one that counted has ended.
func (a *acks) addLocal(st *stream) {
	before := a.local
	open := slices.Contains(a.locals, before)
	a.locals = append(a.locals, st)
	if before != nil && st.predecessor != before.predecessor {
		return // one of them is a predecessor; see Server.count
	}
	if before != nil {
		st.acked, st.refused = maps.Clone(before.acked), before.refused
	}
	if !open {
		a.local = st
	}
}

// successor returns the stream of this host that counts when the one that counted has ended: the
// last one that has a whole configuration, or none.
func (a *acks) successor() *stream {
	for _, st := range slices.Backward(a.locals) {
		if st.counts && st.predecessor == a.local.predecessor {
			return st
		}
	}
	return nil
}

// end forgets a stream that has ended.
func (a *acks) end(st *stream) {
	if st.remote == nil {
		a.locals = slices.DeleteFunc(a.locals, func(open *stream) bool { return open == st })
		return
	}
	delete(a.remote, st)
	if st.counts || !a.last.counts && len(a.remote) == 0 {
		a.last = st
	}
	if host := st.remote.host(); !a.serves(host) {
		a.left[host] = time.Now()
	}
	maps.DeleteFunc(a.left, func(_ string, at time.Time) bool { return time.Since(at) > forgetAfter })
}

// forgetAfter is how long it is known that a host has left.
const forgetAfter = time.Hour

// serves reports whether an Envoy of a host has an open stream.
func (a *acks) serves(host string) bool {
	for st := range a.remote {
		if st.remote.host() == host {
			return true
		}
	}
	return false
}

// settled is how long an Envoy may take to open its next stream, here or at another gateway.
const settled = 2 * time.Second

// HasLeft reports whether the Envoys of another host, an IP address, were configured by this server
// and now are by none or by that of another gateway.
func (s *Server) HasLeft(host string) bool {
	s.ackMu.Lock()
	defer s.ackMu.Unlock()
	at, left := s.acks.left[host]
	return left && time.Since(at) > settled
}

func (a *acks) counted() []*stream {
	var all []*stream
	for st := range a.remote {
		if st.counts {
			all = append(all, st)
		}
	}
	if a.local != nil {
		return append(all, a.local)
	}
	if len(all) == 0 && a.last != nil {
		return []*stream{a.last}
	}
	return all
}

// deciding returns the streams whose Envoys decide which replicas of a cluster may be picked. These
// are the streams that count, but for those that refuse the cluster while others take it. A request
// through an Envoy that refuses it gets another replica that this Envoy has, or 503 if it lacks the
// cluster.
func (a *acks) deciding(cluster string) []*stream {
	all := a.counted()
	refuses := func(st *stream) bool {
		return slices.ContainsFunc(st.refused, func(n Nack) bool { return n.Resource == cluster })
	}
	if takes := slices.DeleteFunc(slices.Clone(all), refuses); len(takes) > 0 {
		return takes
	}
	return all
}

// common returns the replicas of a cluster that every Envoy has at the same address. nil means that
// one of them has no endpoints of the cluster, or that there is no Envoy. An Envoy that refuses the
// cluster has no say if another one takes it.
func (a *acks) common(cluster string) map[string]netip.AddrPort {
	var common map[string]netip.AddrPort
	for i, st := range a.deciding(cluster) {
		endpoints := st.acked[cluster]
		switch {
		case endpoints == nil:
			return nil
		case i == 0:
			common = nonNil(endpoints.replicas)
		default:
			common = commonReplicas(common, endpoints.replicas)
		}
	}
	return common
}

// nonNil returns m, or an empty map.
func nonNil(m map[string]netip.AddrPort) map[string]netip.AddrPort {
	if m == nil {
		return map[string]netip.AddrPort{}
	}
	return m
}

func commonReplicas(a, b map[string]netip.AddrPort) map[string]netip.AddrPort {
	if maps.Equal(a, b) {
		return a
	}
	common := map[string]netip.AddrPort{}
	for id, address := range a {
		if b[id] == address {
			common[id] = address
		}
	}
	return common
}

// count has the Envoy of a stream count from now on.
func (s *Server) count(st *stream) {
	s.ackMu.Lock()
	defer s.ackMu.Unlock()
	st.counts = true
	if st.remote == nil && (!st.predecessor || s.acks.local.predecessor) {
		s.mu.Lock()
		s.promoteLocked(st)
		s.mu.Unlock()
	}
	s.tellAllLocked()
}

// reportAcked records the endpoints that the stream's Envoy has of a model's cluster, and calls
// OnAck if that changes which replicas may be picked. nil means that it has none.
func (s *Server) reportAcked(st *stream, cluster string, endpoints *Resource) {
	if _, ok := headers.ClusterModel(cluster); !ok {
		return
	}
	s.ackMu.Lock()
	defer s.ackMu.Unlock()
	if endpoints == nil {
		delete(st.acked, cluster)
	} else {
		st.acked[cluster] = endpoints
	}
	s.tellLocked(cluster)
}

// setRefused records the resources that a stream's Envoy refuses, and calls OnAck if that changes
// which replicas may be picked.
func (s *Server) setRefused(st *stream, refused []Nack) {
	s.ackMu.Lock()
	defer s.ackMu.Unlock()
	s.mu.Lock()
	changed := slices.Concat(st.refused, refused)
	st.refused = refused
	s.mu.Unlock()
	for _, n := range changed {
		if _, ok := headers.ClusterModel(n.Resource); ok {
			s.tellLocked(n.Resource)
		}
	}
}

// tellLocked calls OnAck if other replicas of a cluster may be picked than before. ackMu is held.
func (s *Server) tellLocked(cluster string) {
	before, known := s.acks.told[cluster]
	now := s.acks.common(cluster)
	switch {
	case now == nil && !known, now != nil && known && maps.Equal(before, now):
		return
	case now == nil:
		delete(s.acks.told, cluster)
	default:
		s.acks.told[cluster] = now
	}
	s.onAck(cluster, now)
}

// tellAllLocked calls OnAck for every cluster of which other replicas may be picked than before.
// ackMu is held.
func (s *Server) tellAllLocked() {
	clusters := maps.Clone(s.acks.told)
	for _, st := range s.acks.counted() {
		for name := range st.acked {
			clusters[name] = nil
		}
	}
	for _, name := range slices.Sorted(maps.Keys(clusters)) {
		s.tellLocked(name)
	}
}

// resourceOfVersion returns the resource that a reconnecting Envoy reports to have. It is current
// if the version matches, or one that an Envoy has acknowledged. For any other version the result
// has no content.
func (s *Server) resourceOfVersion(current *Resource, name, version string) *Resource {
	if current != nil && current.Version == version {
		return current
	}
	s.ackMu.Lock()
	defer s.ackMu.Unlock()
	for _, st := range s.acks.counted() {
		if acked := st.acked[name]; acked != nil && acked.Version == version {
			return acked
		}
	}
	return &Resource{Name: name, Version: version}
}

// toldClusters lists the clusters for which OnAck was called with replicas.
func (s *Server) toldClusters() []string {
	s.ackMu.Lock()
	defer s.ackMu.Unlock()
	return slices.Collect(maps.Keys(s.acks.told))
}
