//go:build vllm

package engines

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime/multipart"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// vLLM itself, on the CPU, which scripts/vllm.sh installs: `make test-vllm`. The tests run one
// after the other, because each vLLM takes 1.5 GB and half a minute of a processor to start.

// patience is how long the tests wait for vLLM, which starts slowly on a busy machine.
const patience = 10 * time.Minute

// vllmModels makes the models of random weights: llama, lora and whisper.
func vllmModels(t *testing.T) string {
	t.Helper()
	python := filepath.Join(filepath.Dir(resolved(t, "vllm")), "venv", "bin", "python")
	folder := t.TempDir()
	if out, err := exec.Command(python, filepath.Join(testutil.Root(), "tests/vllm/models.py"), folder).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return folder
}

// resolved returns the path of a tool with its symbolic links resolved.
func resolved(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.EvalSymlinks(testutil.Tool(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// vllmModel is a model of the file, by its built-in engine. Beside what the test adds it says what
// the CPU build needs: little memory for its cache, one thread, no network, no statistics to
// anybody.
func vllmModel(name, task, source, replicas, variables string) string {
	return fmt.Sprintf(`
  - name: %s
    task: %s
    engine: vllm
    source: {registry: local, name: %s}
    replicas: {%s}
    cooldown: 1s
    variables: {dtype: float32, enforce_eager: true, max_num_seqs: 8%s}
    env:
      VLLM_CPU_KVCACHE_SPACE: "1"
      VLLM_CPU_OMP_THREADS_BIND: nobind
      OMP_NUM_THREADS: "1"
      VLLM_HOST_IP: 127.0.0.1
      HF_HUB_OFFLINE: "1"
      VLLM_NO_USAGE_STATS: "1"
      DO_NOT_TRACK: "1"
`, name, task, source, replicas, variables)
}

func registry(models string) string {
	return "registries:\n  - {name: local, kind: directory, path: " + models + "}\n"
}

// eventuallyFor waits until ok returns nil, for at most patience.
func eventuallyFor(t *testing.T, what string, ok func() error) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// awaitGone waits until no vLLM of the model runs.
func awaitGone(g *harness.Gateway, model string) {
	g.T.Helper()
	eventuallyFor(g.T, "no replica of "+model, func() error {
		if m := g.Model(model); m.Replicas != 0 {
			return fmt.Errorf("%+v", m)
		}
		for _, command := range g.Processes() {
			if strings.Contains(command, "--served-model-name "+model+" ") {
				return errors.New("still running: " + command)
			}
		}
		return nil
	})
}

// chatOf returns the body of a chat with temperature 0. A streamed chat asks for its usage.
func chatOf(model string, stream bool, tokens int, messages ...string) string {
	extra := `{"temperature":0,`
	if stream {
		extra += `"stream_options":{"include_usage":true},`
	}
	return strings.Replace(harness.ChatBody(model, stream, tokens, messages...), "{", extra, 1)
}

func TestE2E_VLLM_N1_P3_T6_TextFromZero(t *testing.T) {
	models := vllmModels(t)
	g := harness.Start(t, registry(models)+"models:"+
		strings.Replace(vllmModel("tiny", "text-generation", "llama", "min: 0, max: 1",
			", max_model_len: 4096, enable_lora: true, lora_modules: [other="+models+"/lora]"), "cooldown: 1s", "cooldown: 10s\n    aliases: [nickname]\n    adapters: [other]", 1))
	if n := len(g.Replicas()); n != 0 {
		t.Fatalf("%d replicas, and nobody has asked", n)
	}
	began := time.Now()
	a := g.Post("/v1/chat/completions", chatOf("tiny", true, 12, "hello"))
	t.Logf("first request answered after %.1f s", time.Since(began).Seconds())
	said, took, err := readStream(a.Content)
	if err := errors.Join(err, harness.CheckWholeStream(a.Content), took.is(3+len("hello"), 12)); err != nil || len(said) != 12 {
		t.Fatalf("said %q: %v: %s", said, err, a)
	}
	checkVLLMCompletion(t, g)
	checkCancel(t, g)
	checkAdapter(t, g, said)
	harness.RunScript(t, []string{testutil.Tool(t, "venv/bin/python"), filepath.Join(testutil.Root(), "tests/clients/chat.py")}, map[string]string{
		"BASE_URL": g.URL + "/v1", "MODEL": "tiny", "SKIP": "streamed tool call,transcription", // the template knows no tools
	})
	awaitGone(g, "tiny")
}

func checkVLLMCompletion(t *testing.T, g *harness.Gateway) {
	t.Helper()
	var reply struct {
		Choices []struct{ Text string }
		Usage   usage
	}
	if err := ask(g, "/v1/completions", `{"model":"tiny","prompt":"once","max_tokens":7}`, &reply); err != nil {
		t.Error(err)
		return
	}
	if err := reply.Usage.is(len("once"), 7); err != nil || len(reply.Choices) != 1 || len(reply.Choices[0].Text) != 7 {
		t.Errorf("%+v: %v", reply, err)
	}
}

// checkCancel checks that the engine stops generating when the client disconnects.
func checkCancel(t *testing.T, g *harness.Gateway) {
	t.Helper()
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	r, err := g.Open(ctx, "/v1/chat/completions", chatOf("tiny", true, 4000, "a long story"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if _, err := bufio.NewReader(r.Body).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	address := g.Replicas()["tiny-0"].Address
	if n := harness.EngineMetric(t, address, "vllm:num_requests_running"); n != 1 {
		t.Errorf("%v requests run while one streams", n)
	}
	before := harness.EngineMetric(t, address, "vllm:generation_tokens_total")
	leave()
	eventuallyFor(t, "the engine works on nothing", func() error {
		if n := harness.EngineMetric(t, address, "vllm:num_requests_running"); n != 0 {
			return fmt.Errorf("%v requests", n)
		}
		return nil
	})
	if n := harness.EngineMetric(t, address, "vllm:generation_tokens_total"); n >= 3900 {
		t.Errorf("it has generated %v tokens after %v at the time of leaving: the whole story", n, before)
	}
	g.AwaitIdle("tiny")
}

// checkAdapter checks that clients can name the adapter as a model. A gateway that has the engine
// as an upstream discovers the model and the adapter.
func checkAdapter(t *testing.T, g *harness.Gateway, base string) {
	t.Helper()
	answer := func(g *harness.Gateway, model string) (string, error) {
		var reply struct {
			Model   string
			Choices []struct{ Message struct{ Content string } }
		}
		if err := ask(g, "/v1/chat/completions", chatOf(model, false, 12, "hello"), &reply); err != nil {
			return "", err
		}
		return reply.Choices[0].Message.Content, nil
	}
	if said, err := answer(g, "nickname"); err != nil || said != base {
		t.Errorf("by its alias the model says %q instead of %q: %v", said, base, err)
	}
	if said, err := answer(g, "other"); err != nil || said == base {
		t.Errorf("the adapter says %q, and the base %q: %v", said, base, err)
	}
	finder := harness.Start(t, "upstreams: ['http://"+g.Replicas()["tiny-0"].Address+"']\n")
	for model, same := range map[string]bool{"tiny": true, "other": false} {
		said, err := answer(finder, model)
		if err != nil || (said == base) != same {
			t.Errorf("%s, discovered, says %q, and the base %q: %v", model, said, base, err)
		}
	}
}

// TestE2E_VLLM_U10_TellsItsLoad: what vLLM says of itself arrives at the gateway that started it,
// and at one that has it as an upstream and recognises it.
func TestE2E_VLLM_U10_TellsItsLoad(t *testing.T) {
	tiny := vllmModel("tiny", "text-generation", "llama", "min: 0, max: 1", ", max_model_len: 1024")
	g := harness.Start(t, registry(vllmModels(t))+"models:"+strings.Replace(tiny, "cooldown: 1s", "cooldown: 10m", 1))
	for range 2 {
		if err := ask(g, "/v1/chat/completions", chatOf("tiny", false, 4, strings.Repeat("many words ", 40)), new(any)); err != nil {
			t.Fatal(err)
		}
	}
	address := g.Replicas()["tiny-0"].Address
	finder := harness.Start(t, "upstreams: ['http://"+address+"']\n")
	told := func(n harness.EngineNews) bool {
		return n.Name == "vllm" && n.Running != nil && n.Waiting != nil && n.KVUsage != nil && n.CacheTokens != nil && n.CachedTokens != nil
	}
	for replica, gateway := range map[string]*harness.Gateway{"tiny-0": g, address: finder} {
		n := gateway.AwaitEngineNews(replica, func(n harness.EngineNews) bool { return told(n) && *n.CachedTokens > 0 })
		if *n.CacheTokens < 100_000 || *n.CacheTokens > 100_000_000 {
			t.Errorf("%s has a cache of %d tokens in a gibibyte", replica, *n.CacheTokens)
		}
	}
}

func TestE2E_VLLM_N1_P3_EmbeddingsFromZero(t *testing.T) {
	g := harness.Start(t, registry(vllmModels(t))+"models:"+vllmModel("embed", "embedding", "llama", "min: 0, max: 1", ", max_model_len: 1024"))
	if err := askEmbeddings(g); err != nil {
		t.Error(err)
	}
	awaitGone(g, "embed")
}

func TestE2E_VLLM_N1_P3_TranscriptionFromZero(t *testing.T) {
	g := harness.Start(t, registry(vllmModels(t))+"models:"+
		vllmModel("hear", "transcription", "whisper", "min: 0, max: 1", ", max_model_len: 448, load_format: dummy"))
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	file, err := w.CreateFormFile("file", "silence.wav")
	if err != nil {
		t.Fatal(err)
	}
	file.Write(silence(16000))
	w.WriteField("model", "hear")
	w.WriteField("language", "en")
	w.Close()
	req, err := http.NewRequest(http.MethodPost, g.URL+"/v1/audio/transcriptions", &form)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", w.FormDataContentType())
	a := g.Do(harness.Client, req)
	var reply struct {
		Text  *string
		Usage struct{ Type string }
	}
	if err := json.Unmarshal(a.Content, &reply); err != nil || a.StatusCode != 200 || reply.Text == nil || reply.Usage.Type != "duration" {
		t.Errorf("%v: %s", err, a)
	}
	awaitGone(g, "hear")
}

// silence returns a WAV file of so many samples, at 16 kHz, 16 bit, one channel.
func silence(samples uint32) []byte {
	size := 2 * samples
	word := func(n uint32) []byte { return []byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)} }
	return slices.Concat([]byte("RIFF"), word(36+size), []byte("WAVEfmt "), word(16), []byte{1, 0, 1, 0}, word(16000), word(32000),
		[]byte{2, 0, 16, 0}, []byte("data"), word(size), make([]byte, size))
}

// TestE2E_VLLM_N7_PrefixRoutingFindsTheCache: turns of one conversation find in vLLM's own cache
// what the turns before have left, when they are routed by their prefix. They find less of it when
// they are dealt out in turn.
func TestE2E_VLLM_N7_PrefixRoutingFindsTheCache(t *testing.T) {
	config := registry(vllmModels(t)) + "models:" + vllmModel("tiny", "text-generation", "llama", "min: 2, max: 2", ", max_model_len: 4096") +
		"    routing: {strategy: %s}\n"
	g := harness.Prepare(t, fmt.Sprintf(config, "prefix"))
	t.Cleanup(g.Stop)
	g.Launch() // which is ready when the replicas are: longer than start waits
	eventuallyFor(t, "two replicas", func() error {
		var list struct{ Models []harness.Model }
		if err := g.TryGet("/api/v1/models", &list); err != nil {
			return err
		}
		if len(list.Models) != 1 || list.Models[0].Ready != 2 {
			return fmt.Errorf("%+v", list)
		}
		return nil
	})
	byPrefix, moved := hitRate(g, "p")
	g.Configure(fmt.Sprintf(config, "round_robin"))
	harness.Eventually(t, "the file is read", func() error {
		first, second := replicaOf(g, "probe"), replicaOf(g, "probe")
		if first == second {
			return errors.New("one prompt, one replica")
		}
		return nil
	})
	inTurn, dealt := hitRate(g, "r")
	t.Logf("share of prompt tokens that were cached: %.2f by prefix (%d of %d conversations moved), %.2f in turn (%d)", byPrefix, moved, conversations, inTurn, dealt)
	if dealt != conversations || byPrefix < inTurn+0.1 {
		t.Error("routing by prefix finds no more of the cache")
	}
}

// replicaOf returns the id of the replica that serves a chat.
func replicaOf(g *harness.Gateway, text string) string {
	g.T.Helper()
	return g.Post("/v1/chat/completions", chatOf("tiny", false, 1, text)).Header.Get("X-Sluice-Replica")
}

// conversations are an odd number: dealt out in turn to two replicas, each conversation goes back
// and forth.
const conversations, turns = 9, 4

// hitRate holds conversations whose prompts nobody has sent before. It returns the share of their
// tokens that the replicas had in their caches, and how many conversations were at more than one
// replica.
func hitRate(g *harness.Gateway, mark string) (share float64, moved int) {
	g.T.Helper()
	total := func(name string) float64 {
		sum := 0.0
		for _, r := range g.Replicas() {
			sum += harness.EngineMetric(g.T, r.Address, name)
		}
		return sum
	}
	const queries, hits = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
	asked, found := total(queries), total(hits)
	messages, homes := make([][]string, conversations), make([]map[string]bool, conversations)
	for turn := range turns {
		for c := range conversations {
			if turn == 0 {
				homes[c] = map[string]bool{}
			} else {
				messages[c] = append(messages[c], "well")
			}
			messages[c] = append(messages[c], strings.Repeat(fmt.Sprintf("%s%d asks %d. ", mark, c, turn), 30))
			a := g.Post("/v1/chat/completions", chatOf("tiny", false, 2, messages[c]...))
			if a.StatusCode != 200 {
				g.T.Fatal(a)
			}
			homes[c][a.Header.Get("X-Sluice-Replica")] = true
		}
	}
	for c := range conversations {
		if len(homes[c]) > 1 {
			moved++
		}
	}
	return (total(hits) - found) / (total(queries) - asked), moved
}

// The program that the tests run is the one of the suite, and no other vLLM of the machine.
func TestE2E_VLLM_Program(t *testing.T) {
	out, err := exec.Command(testutil.Tool(t, "vllm"), "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	pins, err := os.ReadFile(filepath.Join(testutil.Root(), "tests/vllm/requirements.txt"))
	if err != nil {
		t.Fatal(err)
	}
	version, _, _ := strings.Cut(strings.TrimSpace(string(out[bytes.LastIndexByte(bytes.TrimSpace(out), '\n')+1:])), "+")
	if !strings.Contains(string(pins), "vllm-cpu=="+version+"\n") {
		t.Errorf("vLLM %s is not the one that is pinned", version)
	}
}
