package peers

import (
	"context"
	"fmt"
	"maps"
	"time"
)

// record is what a gateway says of itself, as it stands in Redis.
type record struct {
	// address is host:port.
	address string
	// certificate is its SHA-256, in hex.
	certificate string
	// until is when it expires if it is not renewed; rather early than late.
	until time.Time
}

// recordsPrefix begins the keys of records; the gateway's name follows.
func (p *Peers) recordsPrefix() string { return p.prefix + "peer:" }

func (p *Peers) recordKey(gateway string) string { return p.recordsPrefix() + gateway }

// announce renews the record of this gateway, if it has one yet.
func (p *Peers) announce(ctx context.Context) error {
	address := p.own()
	if address == "" {
		return nil
	}
	_, err := p.call(ctx, announceScript, []string{p.recordKey(p.cfg.ID)}, address, p.sum, millis(p.cfg.Expiry))
	return err
}

// known is the record of a gateway, as far as it holds without asking.
func (p *Peers) known(gateway string) (record, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, ok := p.records[gateway]
	return r, ok && time.Now().Before(r.until)
}

// look asks Redis for a record; errGone when there is none.
func (p *Peers) look(ctx context.Context, gateway string) (record, error) {
	asked := time.Now()
	value, err := p.call(ctx, lookScript, []string{p.recordKey(gateway)})
	if err != nil {
		return record{}, err
	}
	var r record
	var left int64
	if list, _ := value.([]any); len(list) == 3 {
		r.address, _ = list[0].(string)
		r.certificate, _ = list[1].(string)
		left, _ = list[2].(int64)
	}
	r.until = asked.Add(time.Duration(left) * time.Millisecond)
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.address == "" || r.certificate == "" || left <= 0 {
		delete(p.records, gateway)
		return record{}, fmt.Errorf("gateway %s: %w", gateway, errGone)
	}
	p.records[gateway] = r
	return r, nil
}

// record is look for those who believe a record until it would have expired.
func (p *Peers) record(ctx context.Context, gateway string) (record, error) {
	if r, ok := p.known(gateway); ok {
		return r, nil
	}
	return p.look(ctx, gateway)
}

// watch ends what is on its way from gateways that have had no record for as long as one holds: their process may be stopped, or the network
// between, without a connection being closed. A record is missed for so long because Redis may have lost all of them.
func (p *Peers) watch(ctx context.Context) error {
	p.mu.Lock()
	now := time.Now()
	maps.DeleteFunc(p.records, func(_ string, r record) bool { return !now.Before(r.until) })
	owners := map[string]bool{}
	for f := range p.forwards {
		owners[f.owner] = true
	}
	p.mu.Unlock()
	maps.DeleteFunc(p.missing, func(owner string, _ time.Time) bool { return !owners[owner] })
	for owner := range owners {
		if err := p.watchOne(ctx, owner); err != nil {
			return err
		}
	}
	return nil
}
