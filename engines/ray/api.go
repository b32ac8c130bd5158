package ray

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
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
	// ErrorType is the kind of fault that ended the job. Older releases do not tell it.
	ErrorType string `json:"error_type"`
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

// errorNoRoom is the ErrorType of a job for which Ray has had no room within
// RAY_JOB_START_TIMEOUT_SECONDS, by default 900.
const errorNoRoom = "JOB_SUPERVISOR_ACTOR_START_TIMEOUT"

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
	return all, c.do(ctx, call{method: http.MethodGet, path: "/api/jobs/", into: &all})
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
	err := c.do(ctx, call{method: http.MethodGet, path: "/api/v0/nodes?limit=10000", into: &answer})
	return answer.Data.Result.Result, err
}

// submit starts a job. A job of the same id is an error.
func (c *client) submit(ctx context.Context, s submission) error {
	return c.do(ctx, call{method: http.MethodPost, path: "/api/jobs/", body: s})
}

// stop ends the process of a job, by SIGTERM and some seconds later by SIGKILL.
func (c *client) stop(ctx context.Context, id string) error {
	return c.do(ctx, call{method: http.MethodPost, path: "/api/jobs/" + url.PathEscape(id) + "/stop"})
}

// remove deletes what Ray knows of a job that has ended. A job that is gone is no error.
func (c *client) remove(ctx context.Context, id string) error {
	err := c.do(ctx, call{method: http.MethodDelete, path: "/api/jobs/" + url.PathEscape(id)})
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
	err := c.do(ctx, call{method: http.MethodGet, path: "/api/jobs/" + url.PathEscape(id) + "/logs", limit: maxLog, into: &answer})
	return answer.Logs, err
}

// answerError is an answer of Ray's that is not 2xx.
type answerError struct {
	status  int
	message string
}

// Error says which status Ray has answered, and why.
func (e *answerError) Error() string { return fmt.Sprintf("Ray answers %d: %s", e.status, e.message) }

// call is one call of the API.
type call struct {
	method, path string
	// body is sent as JSON. nil means none.
	body any
	// into is what a 2xx answer is decoded into. nil means that the answer does not matter.
	into any
	// limit is the size of the largest answer that is read, in bytes. 0 means maxAnswer.
	limit int64
}

// content returns the body to send; nil if there is none.
func (a call) content() (io.Reader, error) {
	if a.body == nil {
		return nil, nil
	}
	data, err := json.Marshal(a.body)
	return bytes.NewReader(data), err
}

// do makes a call. The error is an *answerError if Ray answers another status than 2xx.
func (c *client) do(ctx context.Context, a call) error {
	body, err := a.content()
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, a.method, c.address+a.path, body)
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
	limit := cmp.Or(a.limit, maxAnswer)
	data, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	switch {
	case err != nil:
		return err
	case response.StatusCode/100 != 2:
		return &answerError{response.StatusCode, lastLine(string(data))}
	case int64(len(data)) > limit:
		return fmt.Errorf("the answer to %s is larger than %d bytes", a.path, limit)
	case a.into == nil:
		return nil
	}
	if err := json.Unmarshal(data, a.into); err != nil {
		return fmt.Errorf("the answer to %s is not what Ray answers: %w", a.path, err)
	}
	return nil
}

// lastLine returns the last line of an error, which says more than the Python stack before it.
func lastLine(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	for _, line := range slices.Backward(lines) {
		if line = strings.TrimSpace(line); len(line) > 1 { // Ray may end with a line that is a full stop
			return string([]rune(line)[:min(maxMessage, len([]rune(line)))])
		}
	}
	return "without a reason"
}
