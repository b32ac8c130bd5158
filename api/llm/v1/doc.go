// Package llmv1 is the Go side of llm/v1/inference.proto: the messages, the client and the server of llm.v1.Inference, generated, and what
// its errors mean as a status of gRPC, written by hand. It imports nothing of Sluice, so clients and engines may use it as it is.
package llmv1
