package envoy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sluice-gateway/sluice/envoy/filter"
	"github.com/sluice-gateway/sluice/internal/process"
)

// RunningFilter returns the path of the filter of the Envoy that runs in a state directory. ok is
// false if none runs.
func RunningFilter(dir *process.Dir) (path string, ok bool) {
	if all := records(dir); len(all) > 0 && all[0].Name == RecordName {
		return all[0].Meta[metaFilter], true
	}
	return "", false
}

// object is an object of Envoy's configuration.
type object = map[string]any

// CheckFilter has an Envoy load the filter at path without serving anything. dir is a directory for
// the configuration that it loads. The error says why Envoy cannot load the filter.
func CheckFilter(ctx context.Context, binary, dir, path string) error {
	file := filepath.Join(dir, "filter-check.json")
	module, err := protojson.Marshal(filter.Module(path))
	if err != nil {
		return err
	}
	content, err := json.Marshal(filterCheck(module))
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, content, 0o600); err != nil {
		return err
	}
	refused, err := validate(ctx, binary, file)
	if err = errors.Join(err, os.Remove(file)); err != nil {
		return err
	}
	switch {
	case strings.Contains(refused, "failed to map segment"): // ld.so(8), where mmap(2) has failed with EPERM
		return fmt.Errorf("envoy does not load %s, because the file system there is mounted with noexec: name a state_dir on another one", path)
	case refused != "":
		return fmt.Errorf("envoy does not load %s: %s", path, refused)
	}
	return nil
}

// filterCheck returns the configuration of an Envoy with the filter. module is that of the module,
// as JSON.
func filterCheck(module json.RawMessage) object {
	typed := func(kind string, fields object) object {
		fields["@type"] = "type.googleapis.com/" + kind
		return fields
	}
	filters := []object{
		{"name": "filter", "typed_config": typed("envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter", object{
			"dynamic_module_config": module, "filter_name": filter.Name,
			"filter_config": typed("google.protobuf.StringValue", object{"value": "/nonexistent/sluice.sock"}),
		})},
		{"name": "router", "typed_config": typed("envoy.extensions.filters.http.router.v3.Router", object{})},
	}
	manager := typed("envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", object{
		"stat_prefix": "check", "http_filters": filters, "route_config": object{"name": "none"},
	})
	inlet := typed("envoy.extensions.filters.network.dynamic_modules.v3.DynamicModuleNetworkFilter", object{
		"dynamic_module_config": module, "filter_name": filter.Name,
		"filter_config":   typed("google.protobuf.StringValue", object{"value": "/nonexistent/sluice.sock"}),
		"terminal_filter": true,
	})
	listener := func(name string, filter object) object {
		return object{
			"name": name, "address": object{"pipe": object{"path": "@sluice-filter-" + name}},
			"filter_chains": []object{{"filters": []object{{"name": name, "typed_config": filter}}}},
		}
	}
	return object{"static_resources": object{"listeners": []object{listener("check", manager), listener("inlets", inlet)}}}
}
