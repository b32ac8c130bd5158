// Package engines tests real engines: llama.cpp, text-embeddings-inference and, with the build tag
// vllm, vLLM, through a real Envoy and the built program. `make test` runs the tests. A test's
// name carries the ids of the requirements that it shows.
package engines

import (
	"os"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }
