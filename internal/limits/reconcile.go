package limits

import "maps"

// reconcile changes the records where the file has changed since the backend last had it. It
// returns the patches that a new value of the file has replaced.
//
// What counts is a change of this process's file, not a difference from the record. Gateways whose
// files differ for a while, as in a rolling update, would otherwise overwrite each other without
// end. Only the first call after a start compares the file with the record.
func (b *Overrides) reconcile(records Records) []string {
	var replaced []string
	for key, file := range b.file {
		rs := b.kinds[kindOf(key)]
		was, known := b.reconciled[key]
		r, kept := records[key]
		if !kept {
			b.putOrDelete(records, key, rs.newRecord(file))
			continue
		}
		rs.repair(&r)
		patched := rs.patched(r)
		for field, rule := range rs {
			said := rule.valueIn(file, field)
			if said == rule.valueIn(r.File, field) || known && said == rule.valueIn(was, field) {
				continue
			}
			r.Values[field] = said
			if r.File == nil {
				r.File = rs.complete(Values{})
			}
			r.File[field] = said
		}
		if named := file != nil; !known || named != (was != nil) {
			if !named {
				r.File = nil
			} else if r.File == nil {
				r.File = maps.Clone(file)
			}
		}
		replaced = append(replaced, replacedPatches(key, patched, rs.patched(r))...)
		b.putOrDelete(records, key, r)
	}
	b.deleteRemoved(records)
	return replaced
}

func replacedPatches(key string, before, after []string) []string {
	var fields []string
	still := map[string]bool{}
	for _, field := range after {
		still[field] = true
	}
	for _, field := range before {
		if !still[field] {
			fields = append(fields, key+" "+field)
		}
	}
	return fields
}

// deleteRemoved deletes the records of models and tenants that the file named before and no longer
// names.
func (b *Overrides) deleteRemoved(records Records) {
	told := map[string]bool{}
	for key := range b.file {
		told[kindOf(key)] = true
	}
	for key, r := range records {
		if _, ok := b.file[key]; ok || !told[kindOf(key)] || len(r.File) == 0 {
			continue
		}
		if _, known := b.reconciled[key]; known || b.reconciled == nil {
			delete(records, key)
		}
	}
}

// putOrDelete keeps a record, unless it says nothing: the file does not name it, and nothing is
// patched.
func (b *Overrides) putOrDelete(records Records, key string, r Record) {
	if len(r.File) == 0 && len(b.kinds[kindOf(key)].patched(r)) == 0 {
		delete(records, key)
		return
	}
	records[key] = r
}
