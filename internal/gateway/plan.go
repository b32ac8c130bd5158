package gateway

import (
	"errors"
	"fmt"

	"github.com/sluice-gateway/sluice/internal/config"
)

// part is one part of the gateway that runs under a configuration.
type part struct {
	// name of the part, for errors.
	name string
	// prepare builds what the part will run under c, and checks it. It changes nothing. The commit
	// that it returns puts c in force for this part. A commit is called at most once.
	prepare func(c *config.Config) (commit func() error, err error)
}

// plan is a configuration that every part has accepted and that no part runs yet.
type plan struct {
	steps []step
}

// step puts one part's share of a plan in force.
type step struct {
	part   string
	commit func() error
}

// newPlan has every part prepare for c. The error joins what the parts refused, each with its name.
func newPlan(parts []part, c *config.Config) (*plan, error) {
	p := &plan{}
	var refused []error
	for _, part := range parts {
		commit, err := part.prepare(c)
		if err != nil {
			refused = append(refused, fmt.Errorf("%s: %w", part.name, err))
			continue
		}
		p.steps = append(p.steps, step{part.name, commit})
	}
	if len(refused) > 0 {
		return nil, errors.Join(refused...)
	}
	return p, nil
}

// commit puts the plan in force, part after part in the order of newPlan. If a part refuses, commit
// puts previous in force again for that part and for all parts before it, so that all parts go on
// with one configuration. previous is nil at the first start, which then fails.
func (p *plan) commit(previous *plan) error {
	for i, s := range p.steps {
		err := s.commit()
		if err == nil {
			continue
		}
		err = fmt.Errorf("%s: %w", s.part, err)
		if previous == nil {
			return err
		}
		return errors.Join(err, previous.restore(i))
	}
	return nil
}

// restore commits the steps up to the one with index last. It goes on after a failure: the other
// parts still need their old share.
func (p *plan) restore(last int) error {
	var failed []error
	for _, s := range p.steps[:last+1] {
		if err := s.commit(); err != nil {
			failed = append(failed, fmt.Errorf("restoring %s: %w", s.part, err))
		}
	}
	return errors.Join(failed...)
}
