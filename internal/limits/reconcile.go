package limits

import (
	"maps"
	"slices"
)

// reconcile changes the records where the file has changed since the backend last had it. It
// returns the patches that a new value of the file has replaced.
//
// What counts is a change of this process's file, not a difference from the record. Gateways whose
// files differ for a while, as in a rolling update, would otherwise overwrite each other without
// end. Only the first call after a start compares the file with the record.
func (o *Overrides) reconcile(records Records) []string {
	var replaced []string
	for key, file := range o.file {
		rs := o.kinds[kindOf(key)]
		was, known := o.reconciled[key]
		r, kept := records[key]
		if !kept {
			o.putOrDelete(records, key, rs.newRecord(file))
			continue
		}
		rs.repair(&r)
		patched := rs.patched(r)
		for field, rule := range rs {
			value := rule.valueIn(file, field)
			if value == rule.valueIn(r.File, field) || known && value == rule.valueIn(was, field) {
				continue
			}
			r.Values[field] = value
			if r.File == nil {
				r.File = rs.complete(Values{})
			}
			r.File[field] = value
		}
		if named := file != nil; !known || named != (was != nil) {
			if !named {
				r.File = nil
			} else if r.File == nil {
				r.File = maps.Clone(file)
			}
		}
		replaced = append(replaced, replacedPatches(key, patched, rs.patched(r))...)
		o.putOrDelete(records, key, r)
	}
	o.deleteRemoved(records)
	return replaced
}

func replacedPatches(key string, before, after []string) []string {
	var fields []string
	for _, field := range before {
		if !slices.Contains(after, field) {
			fields = append(fields, key+" "+field)
		}
	}
	return fields
}

// deleteRemoved deletes the records of models and tenants that the file named before and no longer
// names. It keeps the patches of models that may return.
func (o *Overrides) deleteRemoved(records Records) {
	kinds := kindsOf(o.file)
	for key, r := range records {
		if _, ok := o.file[key]; ok || !kinds[kindOf(key)] || len(r.File) == 0 {
			continue
		}
		if _, known := o.reconciled[key]; o.reconciled != nil && !known {
			continue
		}
		if !o.isAway(key) || len(o.kinds[kindOf(key)].patched(r)) == 0 {
			delete(records, key)
		}
	}
}

// isAway reports whether a key that the file lacks may return to it. A model that the last file
// named, and that this file does not name, was removed by an operator.
func (o *Overrides) isAway(key string) bool {
	if o.mayReturn == nil || !o.mayReturn(key) {
		return false
	}
	return o.reconciled == nil || o.couldReturn != nil && o.couldReturn(key)
}

// putOrDelete keeps a record, unless it says nothing: the file does not name it, and nothing is
// patched.
func (o *Overrides) putOrDelete(records Records, key string, r Record) {
	if len(r.File) == 0 && len(o.kinds[kindOf(key)].patched(r)) == 0 {
		delete(records, key)
		return
	}
	records[key] = r
}
