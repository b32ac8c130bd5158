package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sluice-gateway/sluice/internal/bench/wire"
)

const (
	// warmRequests are made before countedRequests are counted.
	warmRequests    = 100
	countedRequests = 300
	// profileName begins the names of callgrind's files. The id of the process follows.
	profileName = "callgrind."
)

// instructions counts the instructions that requests cost Envoy. The kernel's are not counted.
// Unlike CPU time, the counts of two runs differ by a few hundredths at most, whatever else the
// machine does.
func (b *testbed) instructions(ctx context.Context) error {
	rows, _ := selectRows("saturated,prompt-64,stream-32-1")
	envoy, err := b.underCallgrind()
	if err != nil {
		return err
	}
	b.options.envoy = envoy
	engines, err := wire.Start(engineCount)
	if err != nil {
		return err
	}
	defer engines.Close()
	fmt.Printf("thousand instructions of Envoy for a request, one after the other\n%-10s", "")
	for _, r := range rows {
		fmt.Printf("  %28s", r.title)
	}
	fmt.Println()
	for _, by := range []string{"plain", "ext_proc", "module"} {
		engines.Begin(rows[0].plan())
		p, err := b.startCounted(by, engines.Addresses())
		if err != nil {
			return fmt.Errorf("%s: %w", by, err)
		}
		fmt.Printf("%-10s", by)
		for _, r := range rows {
			engines.Begin(r.plan())
			n, err := b.count(ctx, p, r)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", by, r.name, err)
			}
			fmt.Printf("  %28.0f", n/1000)
		}
		fmt.Println()
		b.stopProcesses()
	}
	fmt.Println()
	return nil
}

// underCallgrind returns a program that runs Envoy under callgrind, which takes about fifty times
// as long.
func (b *testbed) underCallgrind() (string, error) {
	for _, tool := range []string{"valgrind", "callgrind_control"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "", fmt.Errorf("%w; Debian has it in the package valgrind", err)
		}
	}
	envoy, err := filepath.Abs(b.envoy)
	if err != nil {
		return "", err
	}
	// A gateway first asks Envoy for its version, and whether Envoy loads the filter.
	script := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in *--version*|*validate*) exec %[1]s \"$@\" ;; esac\n"+
		"exec valgrind --tool=callgrind --callgrind-out-file=%[2]s/%[3]s%%p %[1]s \"$@\"\n", envoy, b.dir, profileName)
	path := filepath.Join(b.dir, "envoy")
	return path, os.WriteFile(path, []byte(script), 0o700)
}

// startCounted starts plain Envoy or a gateway.
func (b *testbed) startCounted(by string, addresses []string) (*proxy, error) {
	if by == "plain" {
		return b.startPlainEnvoy(addresses, 1)
	}
	// So slow an Envoy must not be taken for one that hangs.
	p, err := b.startGateway(by, nil, comparedModels(by+", hang_timeout: 10m", 1, addresses))
	if err != nil {
		return nil, err
	}
	fault, err := p.filterFault()
	if fault != "" {
		err = errors.New(fault)
	}
	return p, err
}

// count returns the instructions of a request.
func (b *testbed) count(ctx context.Context, p *proxy, r row) (float64, error) {
	client, err := wire.Dial(p.address)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	request := r.request("limited")
	for i := range warmRequests + countedRequests {
		if i == warmRequests {
			if err := callgrind(ctx, "--zero", p); err != nil {
				return 0, err
			}
		}
		if _, err := client.Do(request); err != nil {
			return 0, err
		}
	}
	if err := callgrind(ctx, "--dump", p); err != nil {
		return 0, err
	}
	total, err := b.counted(p.envoyPID)
	return total / countedRequests, err
}

// callgrind gives the callgrind of a proxy's Envoy an order.
func callgrind(ctx context.Context, order string, p *proxy) error {
	out, err := exec.CommandContext(ctx, "callgrind_control", order, fmt.Sprint(p.envoyPID)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("callgrind_control %s: %w: %s", order, err, out)
	}
	return nil
}

// counted returns what callgrind has written of a process, and removes it.
func (b *testbed) counted(pid int) (float64, error) {
	files, err := filepath.Glob(filepath.Join(b.dir, fmt.Sprint(profileName, pid, ".*")))
	if err != nil {
		return 0, err
	}
	total := 0.0
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return 0, err
		}
		n, err := totalOf(string(content))
		if err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		total += n
		if err := os.Remove(file); err != nil {
			return 0, err
		}
	}
	if total == 0 {
		return 0, errors.New("callgrind has counted nothing")
	}
	return total, nil
}

func totalOf(profile string) (float64, error) {
	for line := range strings.Lines(profile) {
		if text, ok := strings.CutPrefix(line, "totals: "); ok {
			return strconv.ParseFloat(strings.TrimSpace(text), 64)
		}
	}
	return 0, errors.New("no totals")
}
