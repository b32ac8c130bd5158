package gateway

import "time"

// guardCommand starts the guard of a state directory.
func guardCommand(self, dir string, grace time.Duration) []string {
	return []string{self, "guard", "--state-dir", dir, "--grace", grace.String()}
}
