# Sluice is built and run on Linux with bash, Go, python3 with pip (Envoy comes as a Python
# package), and curl. The tests also need node and npm, a C++ compiler with cmake, Chromium, Redis,
# nginx, HAProxy and promtool. The scripts install missing programs if they may run apt-get. If not,
# they name them.

# RACE is the flag for the race detector, which needs a C compiler. `make test RACE=` tests without
# it.
RACE ?= -race
# The tests with real Envoys and whole gateways measure time, so they run without the race detector.
# Two packages run at a time: one uses the processors while the other is built, or waits for its
# last test. The first packages are those that take longest, so that none of them is left alone at
# the end.
E2E_FIRST = lifecycle clients edge streams kubernetes nodes
E2E = $(addprefix ./tests/e2e/,$(E2E_FIRST)) $(filter-out $(addprefix %/,$(E2E_FIRST)),$(shell go list ./... | grep /tests/e2e/))
E2E_AT_ONCE = -p 2 -parallel $(AT_ONCE)
# Their subjects are requests through Envoy, which the filter inside Envoy and ext_proc must decide
# alike. Where replicas run, starts and stops, and the tests of E2E_BY_EITHER are left to
# test-ext-proc.
E2E_REQUESTS = $(addprefix ./tests/e2e/,streams edge clients routing admission engines)
# Tests that would prove with ext_proc what they have proved with the filter, by parts of their
# names. The operator's page, and the commands of the documents:
E2E_BY_EITHER = AdminPage|OnThePage|_O10_Page|O11_Commands
# Tests whose configuration names the filter, so that SLUICE_FILTER has no effect:
E2E_BY_EITHER := $(E2E_BY_EITHER)|B6_TheFilter|B6_StreamsOutlive|B6_B12_Answers|B6_RequestsMove|B6_X20_AFilter|B6_E3_|B6_AnotherVersion|B6_Outages
# Requests of which Envoy asks neither (tasks, WebSockets, gRPC), connections, and certificates:
E2E_BY_EITHER := $(E2E_BY_EITHER)|W1_W4_|W2_LimitsInRedis|W3_TokenShares|W6_RetriedCalls|W6_ACallerThatDies|W6_TasksOutlive|W6_LongPoll
E2E_BY_EITHER := $(E2E_BY_EITHER)|W6_ARequestIDOf|W8_|R11_ALateRepetition|X2_TurnsOf|S9_Realtime|S9_Parameters|S10_Fields|X4_Realtime
E2E_BY_EITHER := $(E2E_BY_EITHER)|B10_X7_WebSockets|ClientsOfRealtime|OpenAIRealtime|X1_CapOf|X1_IdleConnection|O12_TheCertificate
# Clients and engines whose requests and answers are of the kinds that other tests have:
# RealLlamaServer has a real engine, and the official clients are those that frameworks use.
E2E_BY_EITHER := $(E2E_BY_EITHER)|B9_Frameworks|B9_AISDK|LlamaSwap|LlamaServerFromZero|LlamaServerTells|DiscoveredLlamaServer|B7_Up|U19_Weights
# Most tests wait for processes, and not for a processor. So go test runs more at a time than there
# are processors: AT_ONCE tests of each package with gateways, and PACKAGES_AT_ONCE packages without
# gateways. A test with a gateway uses a processor for about a third of its time.
AT_ONCE ?= $(shell expr 2 '*' $$(nproc))
PACKAGES_AT_ONCE ?= $(shell expr 2 '*' $$(nproc))
# The tests of benchmarks compute in virtual time, with one goroutine, and are thirty times slower
# with it.
VIRTUAL = $(shell go list ./... | grep /internal/bench/)
# Of the packages that take long, xds alone has a name near the end. It would run alone there.
UNIT = ./xds $(filter-out %/xds,$(shell go list ./... | grep -v -e /tests/e2e/ -e /internal/bench/))
# FUZZTIME is how long each fuzz target runs, BENCHTIME how long each benchmark runs.
FUZZTIME ?= 20s
BENCHTIME ?= 1s

# VERSION is the version that `sluice version` prints.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)

export SLUICE_ENVOY ?= $(CURDIR)/.tools/envoy

.PHONY: build dist module run test test-ext-proc test-vllm vet lint bench bench-quick bench-docs bench-packages bench-scaling bench-routing bench-routing-virtual bench-routing-envoy chaos soak soak-hour fuzz envoy tools clean

# build makes the release binary, with its version, without symbols and without paths of this
# machine. The tag grpcnotrace leaves out grpc's traces, whose HTML templates would make the binary
# far larger (see internal/template). The program contains the filter for Envoy if the machine has a
# C compiler for the target (zig, for another architecture), or if `make module` was run.
build:
	@scripts/module.sh auto
	go build -trimpath -tags grpcnotrace -ldflags "-s -w -X main.release=$(VERSION)" -o bin/sluice ./cmd/sluice

# dist makes the release in dist/: static programs for amd64 and arm64, Debian packages, bills of
# materials, the Helm chart and checksums. The same commit gives the same bytes.
dist:
	VERSION=$(VERSION) scripts/dist.sh

# module compiles the filter for Envoy into envoy/filter/built, by the machine's cc. With
# ARCHS="amd64 arm64" zig compiles it for these, with the same result on every machine.
module:
	@scripts/module.sh $(ARCHS)

# run starts the quick start and streams a first chat. With ONCE=1 it stops after the chat.
run: envoy build
	@scripts/run.sh

# test runs all tests, with a real Envoy, a real llama.cpp, the official clients and a real browser.
test: tools vet
	go test $(RACE) -vet=off -timeout 15m -p $(PACKAGES_AT_ONCE) $(UNIT)
	# internal/relay once more, with net/http in the place of internal/http1, which tells a fault of
	# ours from one of Envoy's. It mostly waits, so the benchmarks, which use neither of them, are
	# tested beside it.
	SLUICE_HTTP1=std go test -vet=off ./internal/relay $(VIRTUAL)
	# With the filter inside Envoy, as users have it. Then once more with ext_proc, for requests
	# through Envoy.
	SLUICE_FILTER=module go test -vet=off -count=1 $(E2E_AT_ONCE) -timeout 20m $(E2E)
	SLUICE_FILTER=ext_proc go test -vet=off -count=1 $(E2E_AT_ONCE) -timeout 20m -skip '$(E2E_BY_EITHER)' $(E2E_REQUESTS)

# test-ext-proc runs all tests through Envoy with ext_proc, of which test runs a part.
test-ext-proc: tools
	SLUICE_FILTER=ext_proc go test -vet=off -count=1 $(E2E_AT_ONCE) -timeout 20m $(E2E)

# test-vllm tests a real vLLM on the CPU. It is not part of test, because it downloads a gigabyte
# and takes minutes.
test-vllm: tools
	@scripts/vllm.sh
	go test -tags vllm -run VLLM -count=1 -timeout 30m ./tests/e2e/engines

vet:
	go vet ./...

lint:
	@scripts/lint.sh

# bench compares a plain Envoy, a gateway that decides by ext_proc and one that decides by the
# filter inside Envoy. It does so in one run of a quarter of an hour. bench-quick does so in eight
# minutes, and bench-docs writes the tables and the plot of docs/performance.md, and raw figures
# into .out/bench.json. `go run ./internal/bench -h` tells how to measure single rows.
bench: envoy build
	go run ./internal/bench
bench-quick: envoy build
	go run ./internal/bench -quick
bench-docs: envoy build
	@mkdir -p .out
	go run ./internal/bench -json .out/bench.json -docs docs

# bench-packages runs the benchmarks of all packages.
bench-packages:
	go test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) $(UNIT)

# bench-scaling replays a recorded hour under several rules of scaling, in virtual time, and writes
# the tables of docs/scaling.md.
bench-scaling:
	go run ./internal/bench/scaling -out docs/scaling.md

# bench-routing compares rules of routing over a recorded hour of a chat service.
# bench-routing-virtual does so in virtual time, with many fleets and worst cases, in a minute.
# bench-routing-envoy replays the hour through a real Envoy and eight simulated engines, with each
# strategy of routing. It takes a quarter of an hour.
bench-routing: bench-routing-virtual bench-routing-envoy
bench-routing-virtual:
	go run ./internal/bench/routing -docs docs
bench-routing-envoy: envoy build
	go run ./internal/bench/routingenvoy -check -out docs/routing.md -plot docs/routing-envoy.svg

# soak runs the tests with random faults RUNS times. A failure prints the SEED that repeats it.
RUNS ?= 10000
soak: tools
	SLUICE_STREAM_RUNS=$(RUNS) go test -count=1 -timeout 60m -run NoFaultLooksLikeAnEnd ./internal/relay
	SLUICE_STREAM_RUNS=$(RUNS) go test -count=1 -timeout 60m -run 'NothingIsLeftOfAStorm|ResumeIsByteIdentical' ./tests/e2e/streams
	SLUICE_STORM=100000 go test -count=1 -timeout 60m -run 'NothingIsLeftOfAStorm|Sanitizers' ./envoy/filter
	SLUICE_STORM=100000 go test -count=1 -timeout 60m -run OutagesOfTheGateway ./tests/e2e/streams

# chaos runs faults against a gateway under load and writes the table of docs/chaos.md. It needs
# root and takes a quarter of an hour.
chaos: envoy build
	@scripts/chaos.sh
	go run ./internal/chaos -out docs/chaos.md

# soak-hour runs mixed traffic without faults for SOAK and plots what the processes hold.
SOAK ?= 1h
soak-hour: envoy build
	@scripts/chaos.sh
	go run ./internal/chaos -soak $(SOAK) -out docs/soak.svg

# fuzz runs every fuzz target for FUZZTIME. The target of the filter inside Envoy needs clang with
# libFuzzer.
fuzz:
	scripts/fuzz.sh $(FUZZTIME)

envoy:
	@scripts/envoy.sh

tools: envoy
	@scripts/clients.sh
	@scripts/llama-server.sh
	@scripts/kubetest.sh
	@scripts/helm.sh
	@scripts/ray.sh
	@scripts/module.sh
	@scripts/zig.sh

# clean keeps .tools, which takes long to build.
clean:
	rm -rf bin dist .out
	go clean -testcache
