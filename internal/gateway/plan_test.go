package gateway

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/config"
)

// recorder makes parts that record what they run under.
type recorder struct {
	commits []string
	running map[string]*config.Config
}

// part returns a part. It refuses to prepare for, or to commit, the configurations that are given.
func (r *recorder) part(name string, cannotPrepare, cannotCommit *config.Config) part {
	return part{name, func(c *config.Config) (func() error, error) {
		if c == cannotPrepare {
			return nil, errors.New("cannot prepare")
		}
		return func() error {
			r.commits = append(r.commits, name)
			if c == cannotCommit {
				return errors.New("cannot commit")
			}
			r.running[name] = c
			return nil
		}, nil
	}}
}

func TestPlanIsCheckedByAllPartsBeforeAnyRunsIt(t *testing.T) {
	next := new(config.Config)
	r := recorder{running: map[string]*config.Config{}}
	_, err := newPlan([]part{r.part("a", nil, nil), r.part("b", next, nil), r.part("c", next, nil)}, next)
	if err == nil || !strings.Contains(err.Error(), "b: cannot prepare") || !strings.Contains(err.Error(), "c: cannot prepare") {
		t.Errorf("error %v does not name both parts that refuse", err)
	}
	if len(r.commits) > 0 {
		t.Errorf("%v were committed although a part refused the plan", r.commits)
	}
}

func TestPlanIsRolledBackWhenAPartRefusesItsCommit(t *testing.T) {
	old, next := new(config.Config), new(config.Config)
	r := recorder{running: map[string]*config.Config{}}
	parts := []part{r.part("a", nil, nil), r.part("b", nil, nil), r.part("c", nil, next), r.part("d", nil, nil)}
	first, err := newPlan(parts, old)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.commit(nil); err != nil {
		t.Fatal(err)
	}
	r.commits = nil
	second, err := newPlan(parts, next)
	if err != nil {
		t.Fatal(err)
	}
	previous, err := newPlan(parts, old)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.commit(previous); err == nil || !strings.Contains(err.Error(), "c: cannot commit") {
		t.Errorf("error %v does not name the part that refused", err)
	}
	for name, c := range r.running {
		if c != old {
			t.Errorf("part %s runs under the refused configuration", name)
		}
	}
	if want := []string{"a", "b", "c", "a", "b", "c"}; !slices.Equal(r.commits, want) {
		t.Errorf("commits %v, want %v", r.commits, want)
	}
}

func TestFirstPlanHasNothingToGoBackTo(t *testing.T) {
	first := new(config.Config)
	r := recorder{running: map[string]*config.Config{}}
	p, err := newPlan([]part{r.part("a", nil, first)}, first)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.commit(nil); err == nil || len(r.commits) != 1 {
		t.Errorf("error %v after %d commits, want an error after 1", err, len(r.commits))
	}
}
