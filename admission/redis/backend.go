package redis

import (
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
	version, err := at[string](list, 0)
	if err != nil {
		return nil, "", err
	}
	records := limits.Records{}
	for i := 1; i+2 < len(list); i += 3 {
		key, err := at[string](list, i)
		if err != nil {
			return nil, "", err
		}
		var r limits.Record
		if r.Values, err = parseValues(list[i+1]); err == nil {
			r.File, err = parseValues(list[i+2])
		}
		if err != nil {
			s.cfg.Log.Error("limits of run time damaged in Redis, those of the file hold", zap.String("of", key), zap.Error(err))
			continue
		}
		records[key] = r
	}
	return records, version, nil
}

func parseValues(hash any) (limits.Values, error) {
	list, _ := hash.([]any)
	out := limits.Values{}
	for i := 0; i+1 < len(list); i += 2 {
		field, err := at[string](list, i)
		if err != nil {
			return nil, err
		}
		digits, err := at[string](list, i+1)
		if err != nil {
			return nil, err
		}
		if out[field], err = strconv.ParseInt(digits, 10, 64); err != nil {
			return nil, err
		}
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
