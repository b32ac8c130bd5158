// Package llmv1 is the Go side of llm/v1/inference.proto. Clients and engines may use it as it is,
// because it imports nothing of Sluice. The messages, the client and the server of llm.v1.Inference
// are generated. The status of gRPC that stands for an error is written by hand.
package llmv1
