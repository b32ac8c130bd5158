package admin

import (
	"net/http"
	"strconv"
)

// ReloadPlan is what a reload of the file would change.
type ReloadPlan struct {
	// Changed are the parts of the file that differ from what is in force.
	Changed []ReloadChange `json:"changed"`
	// RestartRequired are the fields that take effect only at the next start.
	RestartRequired []string `json:"restart_required"`
	// NeedsForce says why the reload needs force. It is empty if it does not.
	NeedsForce string `json:"needs_force"`
}

// ReloadChange is one part of the file that differs.
type ReloadChange struct {
	// What is the kind of the part: model, tenant, listen. Name is empty if there is one only.
	What string `json:"what"`
	Name string `json:"name"`
	// Change is added, changed or removed.
	Change string `json:"change"`
	// Fields are the fields that differ, without values.
	Fields []string `json:"fields"`
	// Replaces are the ids of the replicas that would be replaced, Ends of those that would end.
	Replaces []string `json:"replaces"`
	Ends     []string `json:"ends"`
}

// maxContent is the size of the largest body of a dry run in bytes: a file as JSON.
const maxContent = 16 << 20

// planReload answers with what a reload would change. s is the value of dry_run.
func (h *handler) planReload(w http.ResponseWriter, r *http.Request, s string) {
	dry, err := strconv.ParseBool(s)
	if err != nil || !dry {
		writeError(w, badParam("dry_run", "dry_run is "+strconv.Quote(s)+": it must be true, or be left out."))
		return
	}
	var body struct {
		Content string `json:"content"`
	}
	if !readObject(w, r, &body, maxContent, `{} or {"content": "the text of a file"}`) {
		return
	}
	plan, err := h.PlanReload([]byte(body.Content))
	if err != nil {
		writeError(w, refusal(http.StatusUnprocessableEntity, err.Error()))
		return
	}
	plan.Changed, plan.RestartRequired = orEmpty(plan.Changed), orEmpty(plan.RestartRequired)
	for i := range plan.Changed {
		c := &plan.Changed[i]
		c.Fields, c.Replaces, c.Ends = orEmpty(c.Fields), orEmpty(c.Replaces), orEmpty(c.Ends)
	}
	writeJSON(w, http.StatusOK, plan)
}
