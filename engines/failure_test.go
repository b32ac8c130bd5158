package engines

import "testing"

func TestU9_ClassifyFailure(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]FailureClass{
		"exit status 1; its log ends: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB":                                             GPUOutOfMemory,
		"exit status 1; its log ends: ValueError: Free memory on device (1/79 GiB) on startup is less than desired GPU memory utilization (0.9, 71 GiB).": GPUOutOfMemory,
		"was killed: it used more than its 2 GiB of memory":                                                                                               OutOfMemory,
		"keeps ending: exit code 137, OOMKilled":                                                                                                          OutOfMemory,
		`start vllm: exec: "vllm": executable file not found in $PATH`:                                                                                    NoProgram,
		`program of the engine: exec: "/opt/vllm/bin/vllm": stat /opt/vllm/bin/vllm: no such file or directory`:                                           NoProgram,
		"exit status 2; its log ends: vllm: error: unrecognized arguments: --no-such":                                                                     BadArguments,
		"exit status 1; its log ends: OSError: x/y is not a local folder and is not a valid model identifier":                                             NoWeights,
		"not ready after 30m0s: probe /health answers 503":                                                                                                TooSlow,
		"no progress for 5m0s: probe /health: connection refused":                                                                                         TooSlow,
		"signal: segmentation fault": Crashed,
		"":                           Crashed,
	} {
		if got := ClassifyFailure(reason); got != want {
			t.Errorf("%q is %s, want %s", reason, got, want)
		}
	}
}
