// Package limits knows which limits of models and tenants are in force: those of the configuration
// file, or overrides that an operator has set at run time. The gateway uses it to read the limits
// that it gives to package admission, and to serve PATCH of the operator's API.
//
// An override wins until the file's value for that field changes. [Overrides] gets the file by Sync
// and overrides by Patch. It stores both in a [Backend], so that a restart or another gateway finds
// them. Nothing in this package enforces a limit.
package limits

import (
	"context"
	"errors"
	"maps"
)

// Values are limits by their names in the file (admission.Limit.Name).
type Values map[string]int64

// Record is what is stored about one model or tenant.
type Record struct {
	// Values are in force. nil in a Save means that the record is deleted.
	Values Values `json:"values"`
	// File is the file's values when Values were last taken from it. Empty means that the file does
	// not name the model or tenant.
	File Values `json:"file,omitempty"`
}

func (r Record) clone() Record {
	return Record{maps.Clone(r.Values), maps.Clone(r.File)}
}

func (r Record) equal(o Record) bool {
	return maps.Equal(r.Values, o.Values) && maps.Equal(r.File, o.File)
}

// Records are records by key: a kind, a slash and a name, such as "model/llama" and "tenant/acme".
// A name may contain slashes.
type Records map[string]Record

// Backend stores records. Its methods are safe for concurrent use.
type Backend interface {
	// Load returns all records and their version. Every change makes another version. "" means that
	// nothing is stored. The caller may change what Load returns.
	Load(context.Context) (Records, string, error)
	// Save changes the given records and leaves the others, if the stored version is still this
	// one. A record with nil Values is deleted. False without an error means that the version was
	// another. After an error the change may be stored or not.
	Save(ctx context.Context, changed Records, version string) (bool, error)
	// HasLost reports whether what is stored as this version lacks changes that an earlier version
	// had.
	HasLost(version, earlier string) bool
}

// Entry is what is in force for one model or tenant. The maps are shared: callers must not change
// them.
type Entry struct {
	// Values are in force, with a value for every field of the kind.
	Values Values
	// File is the file's values, for every field of the kind; nil for a model that the file does
	// not name.
	File Values
	// Patched are the fields whose value is not that of the file, sorted.
	Patched []string
}

// ErrUnknown means that the last Sync did not name the key.
var ErrUnknown = errors.New("limits: unknown model or tenant")

// Invalid is the error of a change that cannot be made.
type Invalid struct {
	// Field is the field at fault.
	Field string
	// Reason is a sentence without the field's name and without a full stop: "must be at least 1".
	Reason string
}

// Error implements error.
func (e *Invalid) Error() string { return "limits: " + e.Field + " " + e.Reason }
