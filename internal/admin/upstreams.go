package admin

import (
	"net/http"
	"time"
)

// Upstream is a server that someone else runs, and what Sluice has seen there.
type Upstream struct {
	// URL is the server's URL, and Replica its id as a replica.
	URL     string `json:"url"`
	Replica string `json:"replica"`
	// Address is the address that the server is called at. It is empty before it is known.
	Address string `json:"address"`
	// Addresses is the number of addresses of the host name, if only the first is used.
	Addresses int `json:"addresses"`
	// State is starting, ready or failed. Reason is why it is failed. Since is when it became ready
	// or failed; null: it is neither yet.
	State  string     `json:"state"`
	Reason string     `json:"reason"`
	Since  *time.Time `json:"since"`
	// Discovered says that the server's own models are served.
	Discovered bool `json:"discovered"`
	// List says that the server has a list of models, as far as it is known.
	List bool `json:"list"`
	// Listed are the first names of the list, and ListedCount counts all.
	Listed      []string `json:"listed"`
	ListedCount int      `json:"listed_count"`
	// Serves are the models that the server is a replica of.
	Serves []string `json:"serves"`
	// Filtered counts the listed models that the file leaves out. Clashes are listed names of
	// something else in the file. Refused says what else cannot be served.
	Filtered int      `json:"filtered"`
	Clashes  []string `json:"clashes"`
	Refused  string   `json:"refused"`
}

func (h *handler) upstreams(w http.ResponseWriter, _ *http.Request) {
	views := []Upstream{}
	for _, u := range h.Upstreams() {
		u.Listed, u.Serves, u.Clashes = orEmpty(u.Listed), orEmpty(u.Serves), orEmpty(u.Clashes)
		if u.Since != nil {
			u.Since = orNull(*u.Since)
		}
		views = append(views, u)
	}
	writeJSON(w, http.StatusOK, map[string][]Upstream{"upstreams": views})
}
