package openai_test

import (
	"fmt"

	"github.com/sluice-gateway/sluice/internal/openai"
)

func Example() {
	body := []byte(`{"model": "llama-3.1-8b", "timeout_ms": 30000, "stream": true, "messages": [
		{"role": "system", "content": "You are terse."},
		{"role": "user", "content": "Hello!"}]}`)

	endpoint, _ := openai.EndpointOf("/v1/chat/completions")
	r, fault := openai.Scan(endpoint, "application/json", body)
	if fault != nil {
		fmt.Println(fault.HTTPStatus(), string(fault.Body()))
		return
	}
	fmt.Println(r.Endpoint, r.Model, r.Stream, r.Timeout)
	fmt.Printf("%016x\n", r.CacheKey(body, 2))
	stripped, changed := r.Strip(body)
	fmt.Println(changed, string(stripped))

	_, fault = openai.Scan(endpoint, "application/json", []byte(`{"model": "a", "mod\u0065l": "b"}`))
	fmt.Println(fault.HTTPStatus(), fault)
	// Output:
	// chat llama-3.1-8b true 30s
	// f3630ad754604bcd
	// true {"model": "llama-3.1-8b", "stream": true, "messages": [
	// 		{"role": "system", "content": "You are terse."},
	// 		{"role": "user", "content": "Hello!"}]}
	// 400 invalid_request: The request body has the same field twice, the second time at byte 15.
}
