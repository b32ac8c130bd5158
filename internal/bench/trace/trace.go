// Package trace reads recorded requests of real services, without their text. The benchmarks of
// routing and of scaling use them.
package trace

import (
	"bufio"
	"bytes"
	"compress/gzip"
	_ "embed" // for the conversation trace
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// BlockTokens is how many tokens of a prompt have one id in Request.Blocks.
const BlockTokens = 512

// Request is one request of a trace.
type Request struct {
	// At is when it arrived, after the beginning of the trace.
	At time.Duration
	// Prompt and Output are its lengths in tokens.
	Prompt, Output int
	// Blocks has one id for each BlockTokens of the prompt; the last block may be shorter. Two
	// prompts begin with the same tokens as far as their ids are equal. The ids of a trace are
	// small numbers from 0 on, without gaps.
	Blocks []int32
}

//go:embed conversation.jsonl.gz
var conversation []byte

// Conversation returns an hour of a chat service: the trace that README.md describes.
func Conversation() ([]Request, error) { return Read(bytes.NewReader(conversation)) }

// Open reads the trace in a file, as Read does. An empty path stands for Conversation.
func Open(path string) ([]Request, error) {
	if path == "" {
		return Conversation()
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	requests, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return requests, nil
}

// record is one line of a trace.
type record struct {
	Timestamp int64   `json:"timestamp"`
	Input     int     `json:"input_length"`
	Output    int     `json:"output_length"`
	HashIDs   []int64 `json:"hash_ids"`
}

// Read reads a trace in the form that README.md describes, with or without gzip. An error names the
// line. A trace without a request is an error.
func Read(r io.Reader) ([]Request, error) {
	plain, err := uncompressed(r)
	if err != nil {
		return nil, err
	}
	var requests []Request
	ids := map[int64]int32{}
	lines := json.NewDecoder(plain)
	for {
		var line record
		err := lines.Decode(&line)
		if errors.Is(err, io.EOF) && len(requests) > 0 {
			return requests, nil
		}
		if err == nil {
			err = line.check(requests)
		}
		if err != nil {
			return nil, fmt.Errorf("request %d of the trace: %w", len(requests)+1, err)
		}
		requests = append(requests, line.request(ids))
	}
}

// uncompressed returns what r has, without gzip.
func uncompressed(r io.Reader) (io.Reader, error) {
	buffered := bufio.NewReader(r)
	if magic, _ := buffered.Peek(2); !bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		return buffered, nil
	}
	return gzip.NewReader(buffered)
}

// check refuses a line that cannot follow the requests before it.
func (x *record) check(before []Request) error {
	blocks := (x.Input + BlockTokens - 1) / BlockTokens
	switch at := time.Duration(x.Timestamp) * time.Millisecond; {
	case x.Input <= 0 || x.Output < 0:
		return fmt.Errorf("input_length %d and output_length %d: the prompt needs a token", x.Input, x.Output)
	case len(x.HashIDs) != blocks:
		return fmt.Errorf("%d hash_ids for %d tokens: there is one for each %d tokens", len(x.HashIDs), x.Input, BlockTokens)
	case len(before) > 0 && at < before[len(before)-1].At:
		return fmt.Errorf("timestamp %d is before that of the request before it", x.Timestamp)
	}
	return nil
}

// request returns the line as a request. ids has the new numbers of the ids so far.
func (x *record) request(ids map[int64]int32) Request {
	r := Request{
		At:     time.Duration(x.Timestamp) * time.Millisecond,
		Prompt: x.Input,
		Output: x.Output,
		Blocks: make([]int32, len(x.HashIDs)),
	}
	for i, id := range x.HashIDs {
		number, ok := ids[id]
		if !ok {
			number = int32(len(ids))
			ids[id] = number
		}
		r.Blocks[i] = number
	}
	return r
}
