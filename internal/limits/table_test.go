package limits_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/limits"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// The tests of this file walk admission.LimitTable. They fail for every place outside of package
// admission that does not handle a limit.

// fileStructs are the structs of the configuration file that hold the limits of each scope.
var fileStructs = map[admission.LimitScope][]any{
	admission.ModelScope:   {config.Admission{}},
	admission.TenantScope:  {config.Tenant{}, config.TenantLimits{}},
	admission.ReplicaScope: {config.Admission{}},
	admission.GatewayScope: {config.Config{}},
}

func allLimits() (all []admission.Limit) {
	for scope := range fileStructs {
		all = append(all, admission.LimitTable(scope)...)
	}
	return all
}

// Each limit has a field in the file, whose bounds are those of PATCH.
func TestLimitTableInTheFile(t *testing.T) {
	t.Parallel()
	for _, l := range allLimits() {
		f, ok := fileField(fileStructs[l.Scope], l.Name)
		if !ok {
			t.Errorf("internal/config has no field with the tag yaml:%q for the limit of a %s", l.Name, l.Scope)
			continue
		}
		if !l.Patchable {
			continue
		}
		if got := bound(f, "min", "least"); got != l.Min {
			t.Errorf("%s of a %s: the file allows %d and more, PATCH %d and more", l.Name, l.Scope, got, l.Min)
		}
		if got := bound(f, "max", "most"); got != l.Max {
			t.Errorf("%s of a %s: the file allows at most %d, PATCH %d", l.Name, l.Scope, got, l.Max)
		}
	}
}

func fileField(structs []any, name string) (reflect.StructField, bool) {
	for _, s := range structs {
		for f := range reflect.TypeOf(s).Fields() {
			if f.Tag.Get("yaml") == name {
				return f, true
			}
		}
	}
	return reflect.StructField{}, false
}

// bound is the number in the first of the tags that the field has.
func bound(f reflect.StructField, tags ...string) int64 {
	for _, tag := range tags {
		if n, err := strconv.ParseInt(f.Tag.Get(tag), 10, 64); err == nil {
			return n
		}
	}
	return -1
}

// Each limit is in the schema of the file.
func TestLimitTableInTheSchema(t *testing.T) {
	t.Parallel()
	schema, err := os.ReadFile("../../examples/sluice.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range allLimits() {
		if !strings.Contains(string(schema), strconv.Quote(l.Name)+": {") {
			t.Errorf("examples/sluice.schema.json has no property %q", l.Name)
		}
	}
}

// FromFile and the setters carry each value from the file to the struct that is enforced.
func TestLimitTableFromTheFile(t *testing.T) {
	t.Parallel()
	for _, l := range allLimits() {
		if l.Scope != admission.ModelScope && l.Scope != admission.TenantScope {
			continue
		}
		structs := filled(fileStructs[l.Scope], l.Name, 7)
		values := limits.FromFile(l.Scope, structs...)
		var got int64
		if l.Scope == admission.ModelScope {
			var m admission.Limits
			values.SetModel(&m)
			got = l.OfModel(&m)
		} else {
			var m admission.TenantLimits
			values.SetTenant(&m)
			got = l.OfTenant(&m)
		}
		if got != 7 {
			t.Errorf("%s of a %s: 7 in the file becomes %d", l.Name, l.Scope, got)
		}
		if _, ok := values.Patchable(l.Scope)[l.Name]; ok != l.Patchable {
			t.Errorf("%s of a %s: Patchable keeps it: %t, want %t", l.Name, l.Scope, ok, l.Patchable)
		}
	}
}

// filled copies the structs and sets the field with this yaml name.
func filled(structs []any, name string, value int64) []any {
	out := make([]any, len(structs))
	for i, s := range structs {
		v := reflect.New(reflect.TypeOf(s)).Elem()
		if f, ok := fileField([]any{s}, name); ok {
			v.FieldByIndex(f.Index).SetInt(value)
		}
		out[i] = v.Interface()
	}
	return out
}

// The operator's API shows each limit of a model and of a tenant. PATCH changes the patchable ones,
// and says of each other that only the file can change it.
func TestLimitTableInTheAPI(t *testing.T) {
	t.Parallel()
	paths := map[admission.LimitScope]string{
		admission.ModelScope: "/api/v1/models/m/limits", admission.TenantScope: "/api/v1/tenants/t/limits",
	}
	for scope, path := range paths {
		rows := admission.LimitTable(scope)
		if scope == admission.ModelScope { // a model shows the limits of its replicas
			rows = append(rows, admission.LimitTable(admission.ReplicaScope)...)
		}
		for _, l := range rows {
			handler := adminHandler(scope)
			var shown map[string]any
			if err := json.Unmarshal(call(handler, http.MethodGet, path, "").Body.Bytes(), &shown); err != nil {
				t.Fatal(err)
			}
			if v, ok := shown[l.Name]; !ok || l.Patchable && v != 7.0 {
				t.Errorf("GET %s shows %s = %v, want the value in force, 7", path, l.Name, v)
			}
			w := call(handler, http.MethodPatch, path, `{"`+l.Name+`":9}`)
			if l.Patchable && w.Code != http.StatusOK {
				t.Errorf("PATCH %s of %s answers %d: %s", path, l.Name, w.Code, w.Body)
			}
			if !l.Patchable && !strings.Contains(w.Body.String(), "configuration file") {
				t.Errorf("PATCH %s of %s answers %s, want that only the configuration file can change it", path, l.Name, w.Body)
			}
		}
	}
}

// adminHandler serves one model and one tenant whose patchable limits are all 7.
func adminHandler(scope admission.LimitScope) http.Handler {
	values := map[string]int64{}
	for _, l := range admission.LimitTable(scope) {
		if l.Patchable {
			values[l.Name] = 7
		}
	}
	snapshot := &engines.Snapshot{Models: map[string]*engines.ModelSnapshot{"m": {Model: engines.Model{Name: "m"}}}}
	return admin.New(admin.Config{
		Listen:      "127.0.0.1:9090",
		Fleet:       func() *engines.Snapshot { return snapshot },
		ModelLoad:   func(string) admin.ModelLoad { return admin.ModelLoad{} },
		Access:      func() *admin.Access { return nil },
		Metrics:     http.NotFoundHandler(),
		Tenants:     func() []admin.Tenant { return []admin.Tenant{{Name: "t"}} },
		Limits:      func(string) (v, file map[string]int64, patched []string, ok bool) { return values, values, nil, true },
		PatchLimits: func(context.Context, string, map[string]*int64) *openai.Error { return nil },
	})
}

func call(h http.Handler, method, path, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Host = "localhost:9090"
	r.Header.Set("Content-Type", "application/json")
	h.ServeHTTP(w, r)
	return w
}

// The operator's page can change each patchable limit, and its tables show the others.
func TestLimitTableOnThePage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../admin/page/limits.js")
	if err != nil {
		t.Fatal(err)
	}
	rows := append(admission.LimitTable(admission.ModelScope), admission.LimitTable(admission.TenantScope)...)
	for _, l := range append(rows, admission.LimitTable(admission.ReplicaScope)...) {
		if l.Patchable && !strings.Contains(string(page), "'"+l.Name+"'") {
			t.Errorf("internal/admin/page/limits.js has no row for %s", l.Name)
		}
		if !l.Patchable && !strings.Contains(string(page), "limits."+l.Name) {
			t.Errorf("internal/admin/page/limits.js does not show %s", l.Name)
		}
	}
}
