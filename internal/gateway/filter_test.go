package gateway

import (
	"errors"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/process"
)

// An Envoy that ends again and again has to do without the filter, until it has run for a while.
func TestB6_AnEnvoyThatEndsAgainAndAgainDoesWithoutTheFilter(t *testing.T) {
	t.Parallel()
	var f ownFilter
	at := time.Now()
	for i := range maxEnds + 1 {
		if err := f.started(at.Add(time.Duration(i) * time.Second)); err != nil {
			t.Errorf("start %d: %v", i+1, err)
		}
	}
	if err := f.started(at.Add(time.Minute)); err == nil {
		t.Errorf("Envoy has the filter although it has ended %d times", maxEnds+1)
	}
	if err := f.started(at.Add(endsWithin)); err != nil {
		t.Error(err)
	}
}

// A gateway says why it does not use the filter, if it should.
func TestB6_WhyTheFilterIsNotUsed(t *testing.T) {
	t.Setenv(filterVariable, "")
	own := "/dir/" + filterName(nil)
	for name, test := range map[string]struct {
		wanted       config.EnvoyFilter
		path         string
		fault        error
		otherVersion bool
		envoy        string
		reason       string
		decides      bool
	}{
		"used":                        {config.FilterAuto, own, nil, false, "/envoy", "", true},
		"not in this program":         {config.FilterAuto, "", nil, false, "/envoy", "", false},
		"not there, and demanded":     {config.FilterModule, "", nil, false, "/envoy", "Missing", false},
		"refused by Envoy":            {config.FilterAuto, "", errors.New("no"), false, "/envoy", "Refused", false},
		"of another version":          {config.FilterAuto, own, nil, true, "/envoy", "AnotherVersion", false},
		"not wanted":                  {config.FilterExtProc, own, errors.New("no"), true, "/envoy", "", false},
		"demanded and used":           {config.FilterModule, own, nil, false, "/envoy", "", true},
		"demanded, of another versio": {config.FilterModule, own, nil, true, "/envoy", "AnotherVersion", false},
		"demanded of another Envoy":   {config.FilterModule, "", nil, false, "", "NotOwnEnvoy", false},
		"another Envoy":               {config.FilterAuto, "", nil, false, "", "", false},
	} {
		c := &config.Config{Envoy: config.Envoy{Filter: test.wanted}}
		f := &ownFilter{dir: new(process.Dir), envoy: test.envoy}
		f.inEnvoy.Store(&loadedFilter{path: test.path, fault: test.fault})
		f.otherVersion.Store(test.otherVersion)
		got := ""
		for _, one := range f.conditions(c) {
			got = one.Reason
		}
		if decides := f.of(c).Decides; got != test.reason || decides != test.decides {
			t.Errorf("%s: reason %q, the filter decides: %v", name, got, decides)
		}
	}
	t.Setenv(filterVariable, "ext_proc")
	if WantedFilter(&config.Config{Envoy: config.Envoy{Filter: config.FilterAuto}}) != config.FilterExtProc ||
		WantedFilter(&config.Config{Envoy: config.Envoy{Filter: config.FilterModule}}) != config.FilterModule {
		t.Error("the variable must take the place of auto alone")
	}
}

// The name of a filter's file says whether it speaks the protocol of this program.
func TestB6_X20_TheNameOfAFilterSaysItsVersion(t *testing.T) {
	for path, want := range map[string]bool{
		"/dir/" + filterName([]byte("x")): true, "/dir/filter-2d711642b726.so": false, "/dir/filter-3-2d711642b726.so": false, "/dir/filter-40-2d711642b726.so": false,
	} {
		if got := hasOwnVersion(path); got != want {
			t.Errorf("%s: %v", path, got)
		}
		f := &ownFilter{dir: new(process.Dir)}
		f.inEnvoy.Store(&loadedFilter{path: path})
		if bare := f.of(&config.Config{}).Bare; bare == want {
			t.Errorf("%s: it is told its socket alone: %v", path, bare)
		}
	}
}

// A typing error in the variable is not taken for a filter.
func TestB6_TheVariableHasTheValuesOfTheConfiguration(t *testing.T) {
	for _, value := range []string{"", "auto", "module", "ext_proc"} {
		t.Setenv(filterVariable, value)
		if err := CheckFilterVariable(); err != nil {
			t.Error(err)
		}
	}
	t.Setenv(filterVariable, "ext-proc")
	const want = `environment variable SLUICE_FILTER: "ext-proc" is none of: auto, module, ext_proc`
	if _, err := New(nil, Options{}); err == nil || err.Error() != want {
		t.Errorf("a gateway says: %v", err)
	}
}
