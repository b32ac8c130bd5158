//go:build !cgo || !linux

package local

import (
	"errors"

	"github.com/sluice-gateway/sluice/engines"
)

// NewInventory returns the inventory of this machine without GPUs of NVIDIA's: this program was
// built without cgo, which the driver's library needs. AMD's GPUs are read from sysfs.
func NewInventory() Inventory { return amdInventory{withoutDriver{}, "/sys"} }

// withoutDriver is the inventory of a program without the driver's library.
type withoutDriver struct{}

// Read implements Inventory.
func (withoutDriver) Read() (engines.Node, error) {
	return nodeWithoutGPUs(), errors.New("this sluice was built without cgo and cannot ask for GPUs")
}
