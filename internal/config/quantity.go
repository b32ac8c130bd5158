package config

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// Size is a number of bytes. In the file it is a whole number, or a number with a unit. The units
// B, KiB, MiB, GiB, TiB are powers of 1024, also written as Kubernetes writes them: Ki, Mi, Gi, Ti.
// The units kB, MB, GB, TB are powers of 1000.
type Size int64

// unit is a unit of sizes: factor is its number of bytes.
type unit struct {
	suffix string
	factor int64
}

// sizeUnits returns the units, longest suffixes first, so that MiB is not read as B.
func sizeUnits() []unit {
	return []unit{
		{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
		{"Ti", 1 << 40}, {"Gi", 1 << 30}, {"Mi", 1 << 20}, {"Ki", 1 << 10},
		{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1},
	}
}

// ParseSize parses a Size as the file has it.
func ParseSize(text string) (Size, error) {
	digits, factor := text, int64(1)
	for _, u := range sizeUnits() {
		if rest, ok := strings.CutSuffix(text, u.suffix); ok {
			digits, factor = rest, u.factor
			break
		}
	}
	digits = strings.TrimSuffix(digits, " ")
	if whole, err := strconv.ParseInt(digits, 10, 64); err == nil && whole >= 0 && whole <= math.MaxInt64/factor {
		return Size(whole * factor), nil
	}
	number, err := strconv.ParseFloat(digits, 64)
	if err != nil || factor == 1 || strings.Trim(digits, "0123456789.") != "" || number*float64(factor) >= math.MaxInt64 {
		return 0, errors.New("must be a size such as 512KiB, 32MiB or 1GiB")
	}
	return Size(number * float64(factor)), nil
}

// String returns the size with the largest binary unit that gives a whole number.
func (s Size) String() string {
	for _, u := range sizeUnits()[:4] {
		if s != 0 && int64(s)%u.factor == 0 {
			return strconv.FormatInt(int64(s)/u.factor, 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(s), 10) + "B"
}

// parseDuration parses a duration as the file has it. A number without a unit is an error, except
// 0.
func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, errors.New("must be a duration such as 500ms, 30s, 5m or 1h30m")
	}
	return d, nil
}
