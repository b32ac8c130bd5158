package peers

import (
	"context"
	"fmt"
	"maps"
	"time"
)

// record is what a gateway has written about itself to Redis.
type record struct {
	// address is host:port.
	address string
	// certificate is the SHA-256 of its certificate in hex.
	certificate string
	// until is when the record expires unless it is renewed, rather too early than too late.
	until time.Time
}

// recordsPrefix returns what the keys of records begin with. The gateway's name follows.
func (p *Peers) recordsPrefix() string { return p.prefix + "peer:" }

func (p *Peers) recordKey(gateway string) string { return p.recordsPrefix() + gateway }

// writeRecord writes or renews the record of this gateway, if it has an address.
func (p *Peers) writeRecord(ctx context.Context) error {
	address := p.ownAddress()
	if address == "" {
		return nil
	}
	_, err := p.runSlow(ctx, writeRecordScript, []string{p.recordKey(p.cfg.ID)}, address, p.sum, millis(p.cfg.Expiry))
	return err
}

// cachedRecord returns the record of a gateway if it is known and has not expired.
func (p *Peers) cachedRecord(gateway string) (record, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, ok := p.records[gateway]
	return r, ok && time.Now().Before(r.until)
}

// fetchRecord reads a record from Redis. The error is errNoRecord when there is none.
func (p *Peers) fetchRecord(ctx context.Context, gateway string) (record, error) {
	asked := time.Now()
	value, err := p.runSlow(ctx, readRecordScript, []string{p.recordKey(gateway)})
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
		return record{}, fmt.Errorf("gateway %s: %w", gateway, errNoRecord)
	}
	p.records[gateway] = r
	return r, nil
}

// findRecord returns the cached record of a gateway, or fetches it.
func (p *Peers) findRecord(ctx context.Context, gateway string) (record, error) {
	if r, ok := p.cachedRecord(gateway); ok {
		return r, nil
	}
	return p.fetchRecord(ctx, gateway)
}

// cancelLostForwards cancels the forwards to gateways that have had no record for Config.Expiry.
// Such a gateway may have stopped, or the network may be cut, without a connection being closed. It
// waits that long because Redis may have lost all records.
func (p *Peers) cancelLostForwards(ctx context.Context) error {
	p.mu.Lock()
	now := time.Now()
	maps.DeleteFunc(p.records, func(_ string, r record) bool { return !now.Before(r.until) })
	owners := map[string]bool{}
	for f := range p.forwards {
		owners[f.owner] = true
	}
	p.mu.Unlock()
	maps.DeleteFunc(p.missingSince, func(owner string, _ time.Time) bool { return !owners[owner] })
	for owner := range owners {
		if err := p.checkOwner(ctx, owner); err != nil {
			return err
		}
	}
	return nil
}
