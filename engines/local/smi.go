package local

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

// smiTimeout bounds a call of nvidia-smi, which takes a second where no process uses the driver.
const smiTimeout = 20 * time.Second

// smi is the inventory of a program that cannot load the driver's library, because it is static. It
// asks nvidia-smi, which comes with the driver. program is the name or the path of nvidia-smi.
type smi struct{ program string }

// Read implements Inventory. It leaves out a GPU that cannot be read, and the node's Reason says
// why.
func (s smi) Read() (engines.Node, error) {
	node := nodeWithoutGPUs()
	if _, err := exec.LookPath(s.program); err != nil {
		return node, errors.New("NVIDIA's program, nvidia-smi, is not there")
	}
	ctx, cancel := context.WithTimeout(context.Background(), smiTimeout)
	defer cancel()
	table, err := s.run(ctx, "--query-gpu=index,uuid,name,memory.total,memory.used,mig.mode.current", "--format=csv,noheader,nounits")
	if err != nil {
		return node, err
	}
	list, err := s.run(ctx, "-L")
	if err != nil {
		return node, err
	}
	var faults []string
	node.GPUs, faults = smiDevices(table, list)
	if node.Reason = strings.Join(faults, "; "); len(node.GPUs) == 0 && len(faults) == 0 {
		node.Reason = "NVIDIA's driver knows of no GPU"
	}
	return node, nil
}

// run returns what nvidia-smi prints.
func (s smi) run(ctx context.Context, args ...string) ([]byte, error) {
	out, err := exec.CommandContext(ctx, s.program, args...).Output()
	if err != nil {
		return nil, fmt.Errorf("NVIDIA's driver does not answer: nvidia-smi: %w: %.200s", err, bytes.TrimSpace(out))
	}
	return out, nil
}

// smiDevices returns the GPUs of the table, with those that are divided replaced by their MIG
// devices in the list.
func smiDevices(table, list []byte) (all []engines.GPU, faults []string) {
	rows := csv.NewReader(bytes.NewReader(table))
	rows.TrimLeadingSpace, rows.FieldsPerRecord = true, 6
	records, err := rows.ReadAll()
	if err != nil {
		return nil, []string{fmt.Sprintf("nvidia-smi's table cannot be read: %v", err)}
	}
	for _, r := range records {
		index, err := strconv.Atoi(r[0])
		if err != nil || !strings.HasPrefix(r[1], "GPU-") {
			faults = append(faults, fmt.Sprintf("GPU %s cannot be used: nvidia-smi says %s", r[0], r[1]))
			continue
		}
		gpu := engines.GPU{UUID: r[1], Name: r[2], Index: index, MemoryTotal: mebibytes(r[3]), MemoryUsed: mebibytes(r[4])}
		if r[5] == "Enabled" {
			all = append(all, smiParts(gpu, list)...)
			continue
		}
		all = append(all, gpu)
	}
	return all, faults
}

// mebibytes returns a number of MiB in bytes; 0 if nvidia-smi does not say.
func mebibytes(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return n << 20
}

// smiPart is the line of a MIG device in nvidia-smi -L. Its profile has the size in GB.
var smiPart = regexp.MustCompile(`^\s+MIG (\S*?(\d+)gb\S*)\s+Device\s+\d+: \(UUID: (MIG-[^)]+)\)`)

// smiParts returns the MIG devices of a GPU in the list. Their lines follow the line of the GPU.
func smiParts(gpu engines.GPU, list []byte) (parts []engines.GPU) {
	within := false
	for line := range strings.Lines(string(list)) {
		if strings.HasPrefix(line, "GPU ") {
			within = strings.Contains(line, "(UUID: "+gpu.UUID+")")
		}
		if m := smiPart.FindStringSubmatch(line); m != nil && within {
			size, _ := strconv.ParseInt(m[2], 10, 64) // digits alone
			parts = append(parts, engines.GPU{UUID: m[3], Name: gpu.Name + " MIG " + m[1], Index: gpu.Index, MIG: true, MemoryTotal: size << 30})
		}
	}
	return parts
}
