//go:build !amd64

package prefix

// take hashes the whole stripes of a text.
func (l *lanes) take(text []byte) { l.takePlainly(text) }
