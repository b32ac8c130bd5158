package main

import (
	"bytes"
	"encoding/json"
	"testing"
)

// TestO7_SchemaIsPrinted checks that the command prints a JSON Schema with an id.
func TestO7_SchemaIsPrinted(t *testing.T) {
	t.Parallel()
	c, out := newSchemaCommand(), new(bytes.Buffer)
	c.SetArgs(nil)
	c.SetOut(out)
	if err := c.Execute(); err != nil {
		t.Fatal(err)
	}
	var schema struct {
		ID string `json:"$id"`
	}
	if err := json.Unmarshal(out.Bytes(), &schema); err != nil || schema.ID == "" {
		t.Errorf("%q, %v", schema.ID, err)
	}
}
