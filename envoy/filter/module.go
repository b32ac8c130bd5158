package filter

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modulesv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/dynamic_modules/v3"
)

// Name is the name by which the module knows each of its filters.
const Name = "sluice"

// Module returns how Envoy loads the filter from a file with this absolute path. Envoy loads a file
// once, so every part of its configuration that names the file must say the same.
func Module(path string) *modulesv3.DynamicModuleConfig {
	return &modulesv3.DynamicModuleConfig{
		Name: Name,
		// A thread of the filter may still run when the last listener with it has gone.
		DoNotClose: true,
		Module: &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{Local: &corev3.DataSource{
			Specifier: &corev3.DataSource_Filename{Filename: path},
		}}},
	}
}
