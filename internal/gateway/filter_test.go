package gateway

import (
	"errors"
	"testing"

	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/process"
)

// A gateway says why it does not use the filter, if it should.
func TestB6_WhyTheFilterIsNotUsed(t *testing.T) {
	t.Setenv(filterVariable, "")
	for name, test := range map[string]struct {
		wanted       config.EnvoyFilter
		path         string
		fault        error
		otherVersion bool
		reason       string
		decides      bool
	}{
		"used":                        {config.FilterAuto, "/f.so", nil, false, "", true},
		"not in this program":         {config.FilterAuto, "", nil, false, "", false},
		"not there, and demanded":     {config.FilterModule, "", nil, false, "Missing", false},
		"refused by Envoy":            {config.FilterAuto, "", errors.New("no"), false, "Refused", false},
		"of another version":          {config.FilterAuto, "/f.so", nil, true, "AnotherVersion", false},
		"not wanted":                  {config.FilterExtProc, "/f.so", errors.New("no"), true, "", false},
		"demanded and used":           {config.FilterModule, "/f.so", nil, false, "", true},
		"demanded, of another versio": {config.FilterModule, "/f.so", nil, true, "AnotherVersion", false},
	} {
		c := &config.Config{Envoy: config.Envoy{Filter: test.wanted}}
		f := &ownFilter{path: test.path, fault: test.fault}
		f.otherVersion.Store(test.otherVersion)
		got := ""
		for _, one := range f.conditions(c) {
			got = one.Reason
		}
		dir := new(process.Dir)
		if decides := f.of(c, dir).Decides; got != test.reason || decides != test.decides {
			t.Errorf("%s: reason %q, the filter decides: %v", name, got, decides)
		}
	}
	t.Setenv(filterVariable, "ext_proc")
	if wantedFilter(&config.Config{Envoy: config.Envoy{Filter: config.FilterAuto}}) != config.FilterExtProc ||
		wantedFilter(&config.Config{Envoy: config.Envoy{Filter: config.FilterModule}}) != config.FilterModule {
		t.Error("the variable must take the place of auto alone")
	}
}
