package ray

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// callTimeout bounds one call of the API.
	callTimeout = 15 * time.Second
	// maxAnswer is the size of the largest answer that is read, in bytes.
	maxAnswer = 64 << 20
	// maxLog is the size of the largest log that is read, in bytes. Ray returns logs as a whole.
	maxLog = 8 << 20
	// maxMessage is how many characters of an error of Ray's are shown.
	maxMessage = 300
)

// client calls the API of one Ray cluster. Its methods may be called from any goroutine.
type client struct {
	// address is the base URL, without a slash at its end.
	address string
	// token is sent with each call. It is empty if Ray asks for none.
	token string
	http  *http.Client
}

func newClient(address, token string) *client {
	return &client{address: strings.TrimRight(address, "/"), token: token, http: &http.Client{Timeout: callTimeout}}
}

// rayJob is a job as the API tells of it.
type rayJob struct {
	SubmissionID string            `json:"submission_id"`
	Status       string            `json:"status"`
	Message      string            `json:"message"`
	Metadata     map[string]string `json:"metadata"`
	// StartTime is in milliseconds since 1970.
	StartTime int64 `json:"start_time"`
	// AgentAddress is the URL of the agent on the job's node, and NodeID names the node. Both are
	// empty before the job has a node.
	AgentAddress string `json:"driver_agent_http_address"`
	NodeID       string `json:"driver_node_id"`
}

// hasEnded reports whether the job runs no more and will not run.
func (j rayJob) hasEnded() bool { return j.Status != statusPending && j.Status != statusRunning }

// The states of a job that has not ended.
const (
	statusPending = "PENDING"
	statusRunning = "RUNNING"
)

// rayNode is a node as the API tells of it.
type rayNode struct {
	ID    string `json:"node_id"`
	IP    string `json:"node_ip"`
	State string `json:"state"`
	Name  string `json:"node_name"`
	// Resources are the amounts that the node has, by the names of Ray: CPU, GPU and memory in
	// bytes, and custom ones.
	Resources map[string]float64 `json:"resources_total"`
}

// isAlive reports whether Ray counts on the node.
func (n rayNode) isAlive() bool { return n.State == "ALIVE" }

// submission is a job to start. Amounts of 0 are not asked for.
type submission struct {
	Entrypoint   string             `json:"entrypoint"`
	SubmissionID string             `json:"submission_id"`
	RuntimeEnv   runtimeEnv         `json:"runtime_env"`
	Metadata     map[string]string  `json:"metadata"`
	CPUs         float64            `json:"entrypoint_num_cpus,omitempty"`
	GPUs         float64            `json:"entrypoint_num_gpus,omitempty"`
	Memory       int64              `json:"entrypoint_memory,omitempty"`
	Resources    map[string]float64 `json:"entrypoint_resources,omitempty"`
}

type runtimeEnv struct {
	Variables map[string]string `json:"env_vars,omitempty"`
}

// jobs lists all jobs of the cluster.
func (c *client) jobs(ctx context.Context) ([]rayJob, error) {
	var all []rayJob
	return all, c.call(ctx, http.MethodGet, "/api/jobs/", nil, &all)
}

// nodes lists the nodes of the cluster, also those that are dead.
func (c *client) nodes(ctx context.Context) ([]rayNode, error) {
	var answer struct {
		Data struct {
			Result struct {
				Result []rayNode `json:"result"`
			} `json:"result"`
		} `json:"data"`
	}
	err := c.call(ctx, http.MethodGet, "/api/v0/nodes?limit=10000", nil, &answer)
	return answer.Data.Result.Result, err
}

// submit starts a job. A job of the same id is an error.
func (c *client) submit(ctx context.Context, s submission) error {
	return c.call(ctx, http.MethodPost, "/api/jobs/", s, nil)
}

// stop ends the process of a job, by SIGTERM and some seconds later by SIGKILL.
func (c *client) stop(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodPost, "/api/jobs/"+url.PathEscape(id)+"/stop", nil, nil)
}

// remove deletes what Ray knows of a job that has ended. A job that is gone is no error.
func (c *client) remove(ctx context.Context, id string) error {
	err := c.call(ctx, http.MethodDelete, "/api/jobs/"+url.PathEscape(id), nil, nil)
	var refused *answerError
	if errors.As(err, &refused) && refused.status == http.StatusNotFound {
		return nil
	}
	return err
}

// log returns the output of a job. It fails if the log is larger than maxLog.
func (c *client) log(ctx context.Context, id string) (string, error) {
	var answer struct {
		Logs string `json:"logs"`
	}
	err := c.read(ctx, "/api/jobs/"+url.PathEscape(id)+"/logs", maxLog, &answer)
	return answer.Logs, err
}

// answerError is an answer of Ray's that is not 2xx.
type answerError struct {
	status  int
	message string
}

// Error says which status Ray has answered, and why.
func (e *answerError) Error() string { return fmt.Sprintf("Ray answers %d: %s", e.status, e.message) }

// call makes one call. body is sent as JSON and may be nil. A 2xx answer is decoded into answer,
// which may be nil.
func (c *client) call(ctx context.Context, method, path string, body, answer any) error {
	var content io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(data)
	}
	return c.do(ctx, method, path, content, limited{maxAnswer, answer})
}

// read is call for an answer of at most limit bytes.
func (c *client) read(ctx context.Context, path string, limit int64, answer any) error {
	return c.do(ctx, http.MethodGet, path, nil, limited{limit, answer})
}

// limited is where an answer of at most limit bytes is decoded into.
type limited struct {
	limit int64
	into  any
}

func (c *client) do(ctx context.Context, method, path string, body io.Reader, answer limited) error {
	request, err := http.NewRequestWithContext(ctx, method, c.address+path, body)
	if err != nil {
		return err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	response, err := c.http.Do(request)
	if err != nil {
		var failed *url.Error
		if errors.As(err, &failed) {
			err = failed.Err // without the URL, which the caller knows
		}
		return err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, answer.limit+1))
	switch {
	case err != nil:
		return err
	case response.StatusCode/100 != 2:
		return &answerError{response.StatusCode, lastLine(string(data))}
	case int64(len(data)) > answer.limit:
		return fmt.Errorf("the answer to %s is larger than %d bytes", path, answer.limit)
	case answer.into == nil:
		return nil
	}
	if err := json.Unmarshal(data, answer.into); err != nil {
		return fmt.Errorf("the answer to %s is not what Ray answers: %w", path, err)
	}
	return nil
}

// lastLine returns the last line of an error, which says more than the Python stack before it.
func lastLine(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	for i := len(lines) - 1; i >= 0; i-- {
		if line := strings.TrimSpace(lines[i]); len(line) > 1 { // Ray may end with a line that is a full stop
			return string([]rune(line)[:min(maxMessage, len([]rune(line)))])
		}
	}
	return "without a reason"
}
