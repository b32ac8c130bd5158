# What a machine needs: Linux, Go, python3 with pip (Envoy comes as a Python package), curl. The tests also want node and npm, a C++
# compiler with cmake, Chromium, Redis, nginx and HAProxy; what is missing is installed where apt-get may, and named where not.

# RACE= runs the tests without the race detector, which needs a C compiler.
RACE ?= -race
# Tests through real Envoys and whole gateways measure time, so they run without the race detector. Their packages run one after another
# (-p 1): the tests of one package already run side by side.
E2E = $(shell go list ./... | grep /tests/e2e/)
UNIT = $(shell go list ./... | grep -v /tests/e2e/)
# FUZZTIME is for each fuzz target.
FUZZTIME ?= 20s
BENCHTIME ?= 1s

# VERSION is what `sluice version` says.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)

export SLUICE_ENVOY ?= $(CURDIR)/.tools/envoy

.PHONY: build run test test-vllm vet lint bench soak fuzz envoy tools clean

# build makes the binary as it is released: no paths of this machine, no symbols, and the version in it. grpcnotrace leaves out
# grpc's traces, whose HTML templates would make the binary far larger (internal/template says why).
build:
	go build -trimpath -tags grpcnotrace -ldflags "-s -w -X main.release=$(VERSION)" -o bin/sluice ./cmd/sluice

# run starts the quick start and streams a first chat; with ONCE=1 it ends after that.
run: envoy build
	@scripts/run.sh

# test is everything, with a real Envoy, a real llama.cpp, the official clients and a real browser.
test: tools vet
	go test $(RACE) -vet=off -timeout 10m $(UNIT)
	go test -vet=off -count=1 -p 1 -timeout 20m $(E2E)

# test-vllm starts a real vLLM on the CPU. It is no part of test: it fetches a gigabyte and takes minutes.
test-vllm: tools
	@scripts/vllm.sh
	go test -tags vllm -run VLLM -count=1 -timeout 30m ./tests/e2e/engines

vet:
	go vet ./...

lint:
	@scripts/lint.sh

# bench measures the parts, then the whole chain beside a plain Envoy in the same run.
bench: envoy build
	go test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) $(UNIT)
	go run ./internal/bench

# soak is the tests with random faults and cuts, many times over. SEED in what fails repeats it.
RUNS ?= 10000
soak: tools
	SLUICE_STREAM_RUNS=$(RUNS) go test -count=1 -timeout 60m -run NoFaultLooksLikeAnEnd ./internal/relay
	SLUICE_STREAM_RUNS=$(RUNS) go test -count=1 -timeout 60m -run 'NothingIsLeftOfAStorm|ResumeIsByteIdentical' ./tests/e2e/streams

# fuzz gives every fuzz target its time.
fuzz:
	scripts/fuzz.sh $(FUZZTIME)

envoy:
	@scripts/envoy.sh

tools: envoy
	@scripts/clients.sh
	@scripts/llama-server.sh
	@scripts/kubetest.sh

# clean leaves .tools, which took long to fill.
clean:
	rm -rf bin .out
	go clean -testcache
