package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// MaxElements is how many elements a list may have that Elements reads. An element may take two
// bytes of a body and a hundred times as much when it is read.
const MaxElements = 100_000

// ErrTooLong is the error for a list with more than MaxElements.
var ErrTooLong = fmt.Errorf("has more than %d elements", MaxElements)

var errNoList = errors.New("is no list")

// Elements reads a JSON list one element after the other, and stops at the first error, which read
// or decode has returned. decode reads the element into its argument.
func Elements(list []byte, read func(i int, decode func(into any) error) error) error {
	d := json.NewDecoder(bytes.NewReader(list))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return errNoList
	}
	for i := 0; d.More(); i++ {
		if i == MaxElements {
			return ErrTooLong
		}
		if err := read(i, d.Decode); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

// Each reads a JSON list as Elements does, of elements of one type.
func Each[T any](list []byte, use func(T)) error {
	return Elements(list, func(_ int, decode func(any) error) error {
		var element T
		if err := decode(&element); err != nil {
			return err
		}
		use(element)
		return nil
	})
}

// List is a JSON list of at most MaxElements. It can be read from null, as a slice can.
type List[T any] []T

// UnmarshalJSON implements json.Unmarshaler.
func (l *List[T]) UnmarshalJSON(raw []byte) error {
	if string(raw) == "null" {
		return nil
	}
	*l = (*l)[:0]
	return Each(raw, func(element T) { *l = append(*l, element) })
}
