// Package limits knows which limits of models and tenants are in force: those of the configuration file, or those an operator has
// set since at run time, which win until the file's value for that field changes.
//
// A [Book] holds them. It is told the file by Sync and the operator's wishes by Patch, and it keeps both in a [Backend], so that a
// restart, or another gateway, finds them. Nothing here enforces a limit: the caller reads Get and tells the parts that do.
package limits

import (
	"context"
	"errors"
	"maps"
)

// Values are limits by the names that the file has for them.
type Values map[string]int64

// Record is what outlives a process about one model or tenant.
type Record struct {
	// Values are in force. Nil in a Save: the record is to be deleted.
	Values Values `json:"values"`
	// File is what the file said when Values were last taken from it. Empty: the file does not name the model or tenant.
	File Values `json:"file,omitempty"`
}

func (r Record) clone() Record {
	return Record{maps.Clone(r.Values), maps.Clone(r.File)}
}

func (r Record) equal(o Record) bool {
	return maps.Equal(r.Values, o.Values) && maps.Equal(r.File, o.File)
}

// Records are found by key: a kind, a slash and a name, such as "model/llama" and "tenant/acme". A name may hold slashes.
type Records map[string]Record

// Backend is where records outlive a process. Its methods are safe for concurrent use.
type Backend interface {
	// Load gives all records and their version, which is another after every change. The version is empty when there is nothing because
	// nothing was saved yet, or all is lost. What it gives belongs to the caller.
	Load(context.Context) (Records, string, error)
	// Save changes the records given and leaves the others, if the version is still that one; a record with nil Values is
	// deleted. False without an error: somebody else has changed something since. After an error, either may be so.
	Save(ctx context.Context, changed Records, version string) (bool, error)
}

// Entry is what holds for one model or tenant. Its maps are shared: they are not to be changed.
type Entry struct {
	// Values are in force, for every field of the kind.
	Values Values
	// File is what the file says, for every field of the kind; nil for a model that the file does not name.
	File Values
	// Patched are the fields whose value is not the file's, sorted.
	Patched []string
}

// ErrUnknown is the answer to a key that the last Sync did not name.
var ErrUnknown = errors.New("limits: unknown model or tenant")

// Invalid is a change that cannot be made.
type Invalid struct {
	// Field at fault.
	Field string
	// Reason is a sentence without the field's name and without a full stop: "must be at least 1".
	Reason string
}

// Error implements error.
func (e *Invalid) Error() string { return "limits: " + e.Field + " " + e.Reason }
