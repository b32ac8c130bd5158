//go:build !cgo || !linux

package local

import (
	"errors"

	"github.com/sluice-gateway/sluice/engines"
)

// NewInventory returns the inventory of this host, without GPUs: this program was built without cgo, which their driver library needs.
func NewInventory() Inventory { return withoutDriver{} }

type withoutDriver struct{}

// Read implements Inventory.
func (withoutDriver) Read() (engines.Node, error) {
	return thisHost(), errors.New("this sluice was built without cgo and cannot ask for GPUs")
}
