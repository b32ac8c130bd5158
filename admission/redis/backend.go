package redis

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/limits"
)

// Load implements limits.Backend. A damaged record is left out: the limits of the file hold for its
// model or tenant, and the others are in force.
func (s *Store) Load(ctx context.Context) (limits.Records, string, error) {
	value, err := s.run(ctx, loadScript, BackgroundTimeout(s.cfg.Timeout), []any{s.prefix})
	if err != nil {
		return nil, "", err
	}
	list, _ := value.([]any)
	f := fields{rest: list}
	version := f.text()
	records := limits.Records{}
	for len(f.rest) > 2 {
		key, values, file := f.text(), f.list(), f.list()
		var r limits.Record
		if r.Values, err = parseValues(values); err == nil {
			r.File, err = parseValues(file)
		}
		if err != nil {
			s.cfg.Log.Error("limits of run time damaged in Redis, those of the file hold", zap.String("of", key), zap.Error(err))
			continue
		}
		records[key] = r
	}
	return records, version, f.err
}

func parseValues(list []any) (limits.Values, error) {
	out := limits.Values{}
	for f := (fields{rest: list}); len(f.rest) > 1; {
		field, digits := f.text(), f.text()
		n, err := strconv.ParseInt(digits, 10, 64)
		if err = cmp.Or(f.err, err); err != nil {
			return nil, err
		}
		out[field] = n
	}
	return out, nil
}

// Save implements limits.Backend.
func (s *Store) Save(ctx context.Context, changed limits.Records, version string) (bool, error) {
	args := []any{s.prefix, version}
	for _, key := range slices.Sorted(maps.Keys(changed)) {
		if kind, _, ok := strings.Cut(key, "/"); !ok || kind != "model" && kind != "tenant" {
			return false, fmt.Errorf("redis: the key %q of limits is not model/<name> or tenant/<name>", key)
		}
		r := changed[key]
		args = append(args, key)
		if r.Values == nil {
			args = append(args, -1, -1)
			continue
		}
		args = appendValues(appendValues(args, r.Values), r.File)
	}
	value, err := s.run(ctx, saveScript, BackgroundTimeout(s.cfg.Timeout), args)
	if err != nil {
		return false, err
	}
	return value == int64(1), nil
}

// HasLost implements limits.Backend. A version is a number that only grows (save.lua).
func (s *Store) HasLost(version, earlier string) bool {
	return version == "" || versionNumber(version) < versionNumber(earlier)
}

// versionNumber returns the number at the beginning of a version; 0 if there is none.
func versionNumber(version string) int64 {
	digits, _, _ := strings.Cut(version, "+") // package limits appends that
	n, _ := strconv.ParseInt(digits, 10, 64)
	return n
}

func appendValues(args []any, v limits.Values) []any {
	args = append(args, 2*len(v))
	for _, field := range slices.Sorted(maps.Keys(v)) {
		args = append(args, field, v[field])
	}
	return args
}
