package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// maxPatch is the maximum length of the body of a PATCH, in bytes.
const maxPatch = 64 << 10

// origin tells which limits come from the file and which were changed at run time.
type origin struct {
	// Patched are the names of the limits that were changed at run time.
	Patched []string `json:"patched"`
	// File holds the file's values of the limits that can be changed. It is empty for a model or a
	// tenant that the file does not name.
	File map[string]int64 `json:"file"`
}

type limitsView struct {
	Limits
	QueueTimeout string `json:"queue_timeout"`
	origin
}

type tenantLimitsView struct {
	TenantLimits
	origin
}

// lookupLimits calls Limits. The origin that it returns has no nil fields.
func (h *handler) lookupLimits(key string) (map[string]int64, origin) {
	values, file, patched, _ := h.Limits(key)
	if file == nil {
		file = map[string]int64{}
	}
	o := origin{Patched: orEmpty(slices.Clone(patched)), File: file}
	slices.Sort(o.Patched)
	return values, o
}

// set sets field to the value in force of the limit name, if values has one. The field may still
// hold the old value, because the parts that enforce a limit learn of a change a moment later.
func set(field *int, values map[string]int64, name string) {
	if v, ok := values[name]; ok {
		*field = int(v)
	}
}

func (h *handler) viewLimits(model string, l Limits) limitsView {
	values, o := h.lookupLimits("model/" + model)
	set(&l.Weight, values, "weight")
	set(&l.MaxConcurrentRequests, values, "max_concurrent_requests")
	set(&l.MaxTokensPerMinute, values, "max_tokens_per_minute")
	return limitsView{l, shortDuration(l.QueueTimeout), o}
}

func (h *handler) viewTenantLimits(t Tenant) tenantLimitsView {
	l := t.Limits
	values, o := h.lookupLimits("tenant/" + t.Name)
	set(&l.Weight, values, "weight")
	set(&l.RequestsPerMinute, values, "requests_per_minute")
	set(&l.TokensPerMinute, values, "tokens_per_minute")
	set(&l.MaxConcurrentStreams, values, "max_concurrent_streams")
	set(&l.MaxPrefill, values, "max_prefill")
	return tenantLimitsView{l, o}
}

// subject is the model or the tenant whose limits an endpoint shows and changes.
type subject struct {
	// key is "model/NAME" or "tenant/NAME".
	key string
	// view returns the body of the response.
	view func() any
	// fixed are the fields of the view that can only be changed in the file.
	fixed []string
}

type subjectHandler func(http.ResponseWriter, *http.Request, subject)

func (h *handler) modelSubject(m *engines.ModelSnapshot) subject {
	return subject{
		key:   "model/" + m.Name,
		view:  func() any { return h.viewLimits(m.Name, h.ModelLoad(m.Name).Limits) },
		fixed: []string{"max_per_replica", "max_prefill_per_replica", "max_prefill_tokens_per_replica", "max_queue", "queue_timeout"},
	}
}

// ofTenant returns the handler of an endpoint of one tenant. raw is the tenant's name, escaped as
// in the path.
func (h *handler) ofTenant(raw string, serve subjectHandler) http.HandlerFunc {
	return named(raw, "tenant's name", func(w http.ResponseWriter, r *http.Request, name string) {
		if _, ok := h.tenant(name); !ok {
			writeError(w, notFound(fmt.Sprintf("The tenant `%s` does not exist. GET /api/v1/tenants lists the tenants.", name)))
			return
		}
		serve(w, r, subject{
			key: "tenant/" + name,
			view: func() any {
				t, _ := h.tenant(name) // it may have been deleted meanwhile
				return h.viewTenantLimits(t)
			},
			fixed: []string{"max_queue_bytes"},
		})
	})
}

// tenant returns the tenant of this name. If there is none, the result has only the name.
func (h *handler) tenant(name string) (t Tenant, ok bool) {
	for _, t := range h.Tenants() {
		if t.Name == name {
			return t, true
		}
	}
	return Tenant{Name: name}, false
}

// limitsRoute returns the route that shows and changes limits. of returns the handler for the
// subject that the path names.
func (h *handler) limitsRoute(of func(subjectHandler) http.HandlerFunc) route {
	return route{
		http.MethodGet:   of(func(w http.ResponseWriter, _ *http.Request, s subject) { writeJSON(w, http.StatusOK, s.view()) }),
		http.MethodPatch: of(h.patch),
	}
}

// patch changes the limits that the body names.
func (h *handler) patch(w http.ResponseWriter, r *http.Request, s subject) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxPatch))
	if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
		writeError(w, openai.Errorf(openai.CodeInvalidRequest, "The body is longer than %d bytes.", maxPatch))
		return
	}
	if err != nil { // the client has disconnected
		writeError(w, openai.Errorf(openai.CodeInvalidRequest, "The body could not be read."))
		return
	}
	values, _ := h.lookupLimits(s.key)
	changes, fault := parsePatch(body, func(field string) string {
		if slices.Contains(s.fixed, field) {
			return "can only be changed in the configuration file."
		}
		if _, ok := values[field]; !ok && values != nil {
			return "is not a limit that can be changed here."
		}
		return ""
	})
	if fault == nil {
		a := auditOf(r)
		a.old = only(values, changes)
		fault = h.PatchLimits(r.Context(), s.key, changes)
		after, _ := h.lookupLimits(s.key)
		a.new = only(after, changes)
	}
	if fault != nil {
		writeError(w, fault)
		return
	}
	writeJSON(w, http.StatusOK, s.view())
}

// only returns the values of the limits that changes names.
func only(values map[string]int64, changes map[string]*int64) map[string]int64 {
	named := map[string]int64{}
	for name := range changes {
		if v, ok := values[name]; ok {
			named[name] = v
		}
	}
	return named
}

// parsePatch reads a JSON object of whole numbers and nulls in which no field occurs twice. refuse
// returns what is wrong with a field's name, or "" if nothing is. parsePatch does not check the
// ranges of the values: PatchLimits does.
func parsePatch(body []byte, refuse func(field string) string) (map[string]*int64, *openai.Error) {
	if !json.Valid(body) {
		return nil, openai.Errorf(openai.CodeInvalidRequest, "The body is not valid JSON.")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, openai.Errorf(openai.CodeInvalidRequest, "The body must be a JSON object of limits.")
	}
	changes := map[string]*int64{}
	for d.More() {
		field, err := fieldName(d)
		if err != nil {
			return nil, openai.Errorf(openai.CodeInvalidRequest, "The body is not valid JSON.")
		}
		wrong := refuse(field)
		if _, twice := changes[field]; twice {
			wrong = "is given more than once."
		}
		if wrong == "" {
			changes[field], wrong = limitValue(d)
		}
		if wrong != "" {
			return nil, badParam(field, fmt.Sprintf("`%s` %s", field, wrong))
		}
	}
	if len(changes) == 0 {
		return nil, openai.Errorf(openai.CodeInvalidRequest, "Name at least one limit to change.")
	}
	return changes, nil
}

// fieldName reads the name of the next field of an object.
func fieldName(d *json.Decoder) (string, error) {
	t, err := d.Token()
	if err != nil {
		return "", err
	}
	name, _ := t.(string) // always a string, because json.Valid was called before
	return name, nil
}

// limitValue reads a field's value. The string is what is wrong with the value, or "" if nothing
// is.
func limitValue(d *json.Decoder) (*int64, string) {
	const wrong = "must be a whole number that is not negative, or null for the value of the file."
	t, err := d.Token()
	if err != nil {
		return nil, wrong
	}
	if t == nil {
		return nil, ""
	}
	n, ok := t.(json.Number)
	if !ok {
		return nil, wrong
	}
	v, err := strconv.ParseInt(n.String(), 10, 64)
	switch {
	case v < 0:
		return nil, wrong
	case errors.Is(err, strconv.ErrRange):
		return nil, "is too large."
	case err != nil: // a fraction or an exponent
		return nil, wrong
	}
	return &v, ""
}
