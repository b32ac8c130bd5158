package limits

import "maps"

// reconcile makes the records what the file asks for, where the file has changed since it was last heard of, and returns the
// patches that gave way to it.
//
// What counts is a change of this process's file, not a difference from the record: gateways whose files differ for a while, as in a
// rolling update, would otherwise take turns for ever. Only the first look after a start compares with the record.
func (b *Book) reconcile(records Records) []string {
	var given []string
	for key, file := range b.file {
		rs := b.kinds[kindOf(key)]
		was, known := b.settled[key]
		r, kept := records[key]
		if !kept {
			b.put(records, key, rs.fresh(file))
			continue
		}
		rs.mend(&r)
		patched := rs.patched(r)
		for field, rule := range rs {
			said := rule.of(file, field)
			if said == rule.of(r.File, field) || known && said == rule.of(was, field) {
				continue
			}
			r.Values[field] = said
			if r.File == nil {
				r.File = rs.whole(Values{})
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
		given = append(given, gone(key, patched, rs.patched(r))...)
		b.put(records, key, r)
	}
	b.forget(records)
	return given
}

func gone(key string, before, after []string) []string {
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

// forget drops the records of what the file named and names no more.
func (b *Book) forget(records Records) {
	told := map[string]bool{}
	for key := range b.file {
		told[kindOf(key)] = true
	}
	for key, r := range records {
		if _, ok := b.file[key]; ok || !told[kindOf(key)] || len(r.File) == 0 {
			continue
		}
		if _, known := b.settled[key]; known || b.settled == nil {
			delete(records, key)
		}
	}
}

// put keeps a record unless it says nothing: the file does not name it, and nothing is patched.
func (b *Book) put(records Records, key string, r Record) {
	if len(r.File) == 0 && len(b.kinds[kindOf(key)].patched(r)) == 0 {
		delete(records, key)
		return
	}
	records[key] = r
}
