// Package seal adds a checksum to a JSON object, so that a reader notices a damaged byte that
// leaves valid JSON. What writes files in the state directory uses it.
package seal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"
)

// ErrDamaged means that the checksum of an object does not fit its content.
var ErrDamaged = errors.New("the checksum does not fit: the file is damaged")

// field begins the checksum, which is the last field of a sealed object.
const field = `,"sum":"`

// Add returns the object with its checksum as the last field. object is a JSON object with at least
// one field, as json.Marshal or json.MarshalIndent return it.
func Add(object []byte) []byte {
	open := bytes.TrimRight(bytes.TrimSuffix(bytes.TrimSpace(object), []byte("}")), " \n")
	return fmt.Appendf(bytes.Clone(open), `%s%016x"}`, field, xxhash.Sum64(open))
}

// Check returns ErrDamaged if data is a sealed object whose checksum does not fit. An object
// without a checksum passes, because earlier versions wrote none. Check does not say whether data
// is valid JSON.
func Check(data []byte) error {
	at := bytes.LastIndex(data, []byte(field))
	if at < 0 {
		return nil
	}
	open := data[:at]
	if !bytes.Equal(bytes.TrimRight(data[at:], "\n"), fmt.Appendf(nil, `%s%016x"}`, field, xxhash.Sum64(open))) {
		return ErrDamaged
	}
	return nil
}

// Unmarshal parses an object and checks its checksum. The error has what is wrong with either.
func Unmarshal(data []byte, v any) error { return errors.Join(Check(data), json.Unmarshal(data, v)) }
