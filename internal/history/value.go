package history

import (
	"math"
	"strconv"
)

// code is a value in two bytes: a number that is not negative, with six bits of exponent and ten of
// mantissa. Whole numbers up to 2,048 are exact, others within 0.05 %.
type code uint16

const (
	mantissaBits = 10
	// exponentBias makes the smallest value about 4 millionths, the greatest about 35 · 10^12.
	exponentBias = 18
	maxExponent  = 63
	// unknown is the code of NaN.
	unknown code = 0xffff
)

// encode returns the code of a value. Values beyond the range get the code of its end.
func encode(v float64) code {
	switch {
	case math.IsNaN(v):
		return unknown
	case v <= 0:
		return 0
	}
	fraction, exponent := math.Frexp(v) // v = fraction · 2^exponent, 0.5 <= fraction < 1
	mantissa := int(math.Round((2*fraction - 1) * (1 << mantissaBits)))
	if mantissa == 1<<mantissaBits {
		mantissa, exponent = 0, exponent+1
	}
	exponent += exponentBias
	switch {
	case exponent < 1:
		return 0
	case exponent > maxExponent:
		return unknown - 1
	}
	return min(code(exponent<<mantissaBits|mantissa), unknown-1)
}

func (c code) value() float64 {
	switch c {
	case unknown:
		return math.NaN()
	case 0:
		return 0
	}
	exponent, mantissa := int(c>>mantissaBits)-exponentBias, int(c&(1<<mantissaBits-1))
	return math.Ldexp(1+float64(mantissa)/(1<<mantissaBits), exponent-1)
}

func encodeAll(v *Values) (codes [seriesCount]code) {
	for i := range v {
		codes[i] = encode(v[i])
	}
	return codes
}

// Round returns a value as a Store keeps it.
func Round(v float64) Number { return Number(encode(v).value()) }

// Number is a value as the API writes it: with the digits that a code has, and null for NaN.
type Number float64

// AppendTo appends the number to JSON.
func (n Number) AppendTo(b []byte) []byte {
	v := float64(n)
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return append(b, "null"...)
	case v >= 1000 || v == math.Trunc(v):
		return strconv.AppendFloat(b, math.Round(v), 'f', -1, 64)
	}
	scale := math.Pow(10, 2-math.Floor(math.Log10(v))) // three digits are before the point
	short := math.Round(v*scale) / scale
	if math.Abs(short-v) > v/(2<<mantissaBits) {
		short = math.Round(v*scale*10) / (scale * 10)
	}
	return strconv.AppendFloat(b, short, 'f', -1, 64)
}

// MarshalJSON implements json.Marshaler.
func (n Number) MarshalJSON() ([]byte, error) { return n.AppendTo(nil), nil }
