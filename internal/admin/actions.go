package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/loglines"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// Actions are what an operator can have the gateway do. docs/api.md says what each does. The models
// and the replicas exist, and are given by their names and ids. DrainReplica may also put a replica
// back that does not exist.
type Actions interface {
	// DrainModel has a model refuse new requests, or accept them again.
	DrainModel(model string, drained bool)
	// DrainReplica takes a replica out of rotation, or puts it back.
	DrainReplica(id string, drained bool)
	// IsDrained reports whether a replica is out of rotation. The replica need not exist.
	IsDrained(id string) bool
	// IsModelDrained is IsDrained for a model, by its name and not by an alias.
	IsModelDrained(model string) bool
	// RestartReplica replaces a replica when it has finished its requests.
	RestartReplica(ctx context.Context, r engines.Replica) *openai.Error
	// RestartModel restarts the replicas of a model one after another, and returns their ids.
	RestartModel(model string) ([]string, *openai.Error)
	// Log writes lines of the log of a replica's engine to w, until they end or ctx ends. An error
	// before the first line says why there is no log.
	Log(ctx context.Context, w io.Writer, r engines.Replica, q loglines.Query) error
	// SetScale sets the bounds of a model's number of replicas until the file changes. nil restores
	// those of the file. The answer has the bounds in force.
	SetScale(model string, to *Bounds) (Scale, *openai.Error)
	// CancelRequest ends a request by Envoy's id.
	CancelRequest(id string) *openai.Error
}

// Bounds are the least and the greatest number of replicas of a model.
type Bounds struct {
	Min int `json:"min"`
	Max int `json:"max"`
}

// Scale are the bounds of a model in force.
type Scale struct {
	Bounds
	// File are the bounds in the file.
	File Bounds `json:"file"`
	// Overridden says that the bounds in force were set at run time.
	Overridden bool `json:"overridden"`
}

// The paths of one replica and of one request begin so.
const (
	replicasPath = "/api/v1/replicas/"
	requestsPath = "/api/v1/requests/"
)

// maxAction is the size of the largest body of an action in bytes.
const maxAction = 1024

// findModelAction returns the route of an action on a model. rest is the path after modelsPath.
func (h *handler) findModelAction(rest string) (route, bool) {
	at := strings.LastIndexByte(rest, '/')
	if at < 0 {
		return nil, false
	}
	name := rest[:at]
	switch rest[at:] {
	case "/drain":
		return route{http.MethodPost: h.ofModel(name, h.drainModel(true))}, true
	case "/undrain":
		return route{http.MethodPost: h.ofDrainedModel(name, h.drainModel(false))}, true
	case "/restart":
		return route{http.MethodPost: h.ofModel(name, h.restartModel)}, true
	case "/scale":
		return route{http.MethodPut: h.ofModel(name, h.setScale), http.MethodDelete: h.ofModel(name, h.resetScale)}, true
	}
	return nil, false
}

// findReplica returns the route of a path below replicasPath.
func (h *handler) findReplica(rest string) (route, bool) {
	at := strings.LastIndexByte(rest, '/')
	if at < 0 {
		return nil, false
	}
	id := rest[:at]
	switch rest[at:] {
	case "/drain":
		return route{http.MethodPost: h.ofReplica(id, h.drainReplica(true))}, true
	case "/undrain":
		return route{http.MethodPost: h.ofDrained(id, h.drainReplica(false))}, true
	case "/restart":
		return route{http.MethodPost: h.ofReplica(id, h.restartReplica)}, true
	case "/log":
		return route{http.MethodGet: h.ofReplica(id, h.replicaLog)}, true
	}
	return nil, false
}

// replicaHandler serves an endpoint of one replica.
type replicaHandler func(http.ResponseWriter, *http.Request, engines.Replica)

// ofReplica returns the handler of an endpoint of one replica. raw is its id, escaped as in the
// path.
func (h *handler) ofReplica(raw string, serve replicaHandler) http.HandlerFunc {
	return named(raw, "replica's id", func(w http.ResponseWriter, r *http.Request, id string) {
		hint := " `sluice ps` lists the replicas."
		for _, m := range h.Fleet().Models {
			if m.Name == id {
				hint = " It is a model: `sluice ps --model " + id + "` lists its replicas."
			}
			if found := m.Replica(id); found != nil {
				serve(w, r, *found)
				return
			}
		}
		writeError(w, notFound("There is no replica `"+id+"`."+hint))
	})
}

// ofDrained is ofReplica for an endpoint that needs no more of a drained replica than its id. A
// drained replica may be away for a while, and would still be drained when it came back.
func (h *handler) ofDrained(raw string, serve replicaHandler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if id, err := url.PathUnescape(raw); err == nil && h.Actions.IsDrained(id) {
			serve(w, r, engines.Replica{ID: id})
			return
		}
		h.ofReplica(raw, serve)(w, r)
	}
}

// ofDrainedModel is ofModel for an endpoint that needs no more of a drained model than its name.
// The file may no longer have the model, which would still be drained when it came back.
func (h *handler) ofDrainedModel(raw string, serve modelHandler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if name, err := url.PathUnescape(raw); err == nil && h.Actions.IsModelDrained(name) {
			serve(w, r, &engines.ModelSnapshot{Model: engines.Model{Name: name}})
			return
		}
		h.ofModel(raw, serve)(w, r)
	}
}

// readAction reads the body of an action into into, and answers a wrong one. An empty body is {}.
func readAction(w http.ResponseWriter, r *http.Request, into any, form string) bool {
	return readObject(w, r, into, maxAction, form)
}

// done answers an action with what it has done, which the audit line tells too.
func done(w http.ResponseWriter, r *http.Request, status int, what map[string]any) {
	auditOf(r).new = what
	writeJSON(w, status, what)
}

// readObject is readAction for a body of at most so many bytes.
func readObject(w http.ResponseWriter, r *http.Request, into any, limit int64, form string) bool {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err == nil && len(bytes.TrimSpace(data)) > 0 {
		d := json.NewDecoder(bytes.NewReader(data))
		d.DisallowUnknownFields()
		if err = d.Decode(into); err == nil {
			// Decoder.More would take a closing bracket for the end of the body.
			if _, end := d.Token(); end != io.EOF {
				err = errors.New("more than one value")
			}
		}
	}
	if err != nil {
		writeError(w, openai.Errorf(openai.CodeInvalidRequest, "The body must be %s: %v.", form, err))
	}
	return err == nil
}

func (h *handler) drainModel(drained bool) modelHandler {
	return func(w http.ResponseWriter, r *http.Request, m *engines.ModelSnapshot) {
		if !readAction(w, r, &struct{}{}, "{} or empty") {
			return
		}
		h.Actions.DrainModel(m.Name, drained)
		done(w, r, http.StatusOK, map[string]any{"model": m.Name, "drained": drained})
	}
}

func (h *handler) drainReplica(drained bool) replicaHandler {
	return func(w http.ResponseWriter, r *http.Request, replica engines.Replica) {
		if !readAction(w, r, &struct{}{}, "{} or empty") {
			return
		}
		h.Actions.DrainReplica(replica.ID, drained)
		done(w, r, http.StatusOK, map[string]any{"replica": replica.ID, "drained": drained})
	}
}

func (h *handler) restartModel(w http.ResponseWriter, r *http.Request, m *engines.ModelSnapshot) {
	if !readAction(w, r, &struct{}{}, "{} or empty") {
		return
	}
	replicas, fault := h.Actions.RestartModel(m.Name)
	if fault != nil {
		writeError(w, fault)
		return
	}
	done(w, r, http.StatusAccepted, map[string]any{"model": m.Name, "restarts": replicas})
}

func (h *handler) restartReplica(w http.ResponseWriter, r *http.Request, replica engines.Replica) {
	if !readAction(w, r, &struct{}{}, "{} or empty") {
		return
	}
	if fault := h.Actions.RestartReplica(r.Context(), replica); fault != nil {
		writeError(w, fault)
		return
	}
	done(w, r, http.StatusAccepted, map[string]any{"replica": replica.ID, "restarts": true})
}

// setScale sets bounds of a model. A bound that the body leaves out keeps its value.
func (h *handler) setScale(w http.ResponseWriter, r *http.Request, m *engines.ModelSnapshot) {
	before := h.scaleOf(w, m)
	if before == nil {
		return
	}
	asked := struct{ Min, Max *int }{}
	if !readAction(w, r, &asked, `{"min": number, "max": number}`) {
		return
	}
	if asked.Min == nil && asked.Max == nil { // would hold the bounds of now until the file changes
		writeError(w, refusal(http.StatusBadRequest, "Give min, max, or both. DELETE restores the bounds of the file."))
		return
	}
	to := before.Bounds
	if asked.Min != nil {
		to.Min = *asked.Min
	}
	if asked.Max != nil {
		to.Max = *asked.Max
	} else {
		to.Max = max(to.Max, to.Min)
	}
	h.scale(w, r, m, before, &to)
}

func (h *handler) resetScale(w http.ResponseWriter, r *http.Request, m *engines.ModelSnapshot) {
	if before := h.scaleOf(w, m); before != nil {
		h.scale(w, r, m, before, nil)
	}
}

// scaleOf returns the bounds of a model. For a model without bounds it answers, and returns nil.
func (h *handler) scaleOf(w http.ResponseWriter, m *engines.ModelSnapshot) *Scale {
	scale := h.ModelLoad(m.Name).Scale
	if scale == nil {
		writeError(w, refusal(http.StatusConflict, "The model `"+m.Name+"` is not launched by Sluice, so it has no number of replicas to set."))
	}
	return scale
}

// scale sets the bounds and answers with those in force.
func (h *handler) scale(w http.ResponseWriter, r *http.Request, m *engines.ModelSnapshot, before *Scale, to *Bounds) {
	now, fault := h.Actions.SetScale(m.Name, to)
	if fault != nil {
		writeError(w, fault)
		return
	}
	auditOf(r).old, auditOf(r).new = before.Bounds, now.Bounds
	writeJSON(w, http.StatusOK, struct {
		Model string `json:"model"`
		Scale
	}{m.Name, now})
}

func (h *handler) cancelRequest(w http.ResponseWriter, r *http.Request, id string) {
	if !readAction(w, r, &struct{}{}, "{} or empty") {
		return
	}
	if fault := h.Actions.CancelRequest(id); fault != nil {
		writeError(w, fault)
		return
	}
	done(w, r, http.StatusAccepted, map[string]any{"request_id": id, "cancelled": true})
}
