//go:build !amd64

package jsonscan

import "testing"

// checkWays has nothing to compare: there is one way.
func checkWays(*testing.T, []byte) {}
