// Package e2e holds the tests that go the whole way: a real client, a real Envoy, the built program, real processes as
// engines. A test's name carries the ids of the requirements it shows, so that `go test -list . ./tests/e2e` is their map.
package e2e
