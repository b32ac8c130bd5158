package redact

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// An engine may log what it was started with.
func TestX15_TextHidesWhatLooksLikeASecret(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"Loading model weights took 3.2 s":                        "Loading model weights took 3.2 s",
		"starts: api_key='sk-abc', port=8000":                     "starts: api_key=…, port=8000",
		"Namespace(port=1,api_key='x y',seed=0)":                  "Namespace(port=1,api_key=…,seed=0)",
		`{"apiKey": "x", "port": 1}`:                              `{"apiKey": …, "port": 1}`,
		"HF_TOKEN=hf_abcdefgh loaded":                             "HF_TOKEN=… loaded",
		"--api-key hunter2 --port 80":                             "--api-key … --port 80",
		"header Authorization: Bearer abc.def next":               "header Authorization: … next",
		"header Bearer abc.def next":                              "header Bearer … next",
		"GET https://user:pw@host/x?sig=1 failed":                 "GET … failed",
		"token hf_AbCdEfGhIjKlMnOp for meta-llama/Llama-3.1-8B":   "token … for meta-llama/Llama-3.1-8B",
		"https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct": "https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct",
		"256 tokens per second, max_tokens=4096":                  "256 tokens per second, max_tokens=4096",
		"x:token=abc":                                             "x:token=…",
		"key (sk-sluice-0123456789abcdef) refused":                "key (…) refused",
		"the tokenizer is ready, key value cache: 4 GiB":          "the tokenizer is ready, key value cache: 4 GiB",
		"jwt eyJhbGciOi.eyJzdWIi.c2ln ok":                         "jwt … ok",
		"task-based, disk-full, monkey=1, keyboard: us":           "task-based, disk-full, monkey=1, keyboard: us",
	} {
		if got := Text(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// A secret may be one of several, or contain quotes. vLLM logs its keys as a list.
func TestX15_TextHidesListsAndEscapes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`args: {'model': 'x', 'api_key': ['mysecretvalue'], 'port': 80}`: `args: {'model': 'x', 'api_key': …, 'port': 80}`,
		`Namespace(api_key=['mysecretvalue', 'b'], port=1)`:              `Namespace(api_key=…, port=1)`,
		`Namespace(api_key=('mysecretvalue',), port=1)`:                  `Namespace(api_key=…, port=1)`,
		`{"api_keys": ["one-secret", "two]\"secret"], "port": 1}`:        `{"api_keys": …, "port": 1}`,
		`{"apiKeys": [] , "port": 1}`:                                    `{"apiKeys": … , "port": 1}`,
		`api_key=[one, two] port=1`:                                      `api_key=… port=1`,
		`api_key=['mysecretva`:                                           `api_key=…`,
		`api_key="mysecretva`:                                            `api_key=…`,
		"api_keys: [\n  \"one\",\n  \"two\"\n]\nport: 1":                 "api_keys: …\nport: 1",
		`password = "a\"bcdef", port=1`:                                  `password = …, port=1`,
		`password='a\'b c' port=1`:                                       `password=… port=1`,
		`password="C:\dir\" port=1`:                                      `password=… port=1`,
		`OPENAI_API_KEYS: foo`:                                           `OPENAI_API_KEYS: …`,
		`--api-keys foo --port 1`:                                        `--api-keys … --port 1`,
		`secrets=foo passwords: bar access-keys=baz`:                     `secrets=… passwords: … access-keys=…`,
		`tokenizer=[api_key=foo]`:                                        `tokenizer=[api_key=…]`,
		`tokens: [1, 2, 3], missing_keys=['lm_head.weight'], keys: 3`:    `tokens: [1, 2, 3], missing_keys=['lm_head.weight'], keys: 3`,
		`prompt_tokens: 7, tokens = "a", [INFO] keyed: (yes)`:            `prompt_tokens: 7, tokens = "a", [INFO] keyed: (yes)`,
		`set "api_key=" in the file`:                                     `set "api_key=" in the file`,
	} {
		if got := Text(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// A log line may have JSON in a string of JSON.
func TestX15_TextHidesJSONInsideOfJSON(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"msg":"args {\"api_key\":\"plain value\",\"port\":1}","n":2}`: `{"msg":"args {\"api_key\":…,\"port\":1}","n":2}`,
		`{"msg":"{\"password\" : \"a\\\"b, c\\\\\"}","n":2}`:            `{"msg":"{\"password\" : …}","n":2}`,
		`{"msg":"{\"token\":\"a\u00e9 \\n b\"}"}`:                       `{"msg":"{\"token\":…}"}`,
		`{"msg":"{\"api_keys\":[\"one value\", \"two\"],\"port\":1}"}`:  `{"msg":"{\"api_keys\":…,\"port\":1}"}`,
		`{"msg":"{\"api_key\":12345,\"port\":1}"}`:                      `{"msg":"{\"api_key\":…,\"port\":1}"}`,
		`{"msg":"{\"Authorization\":\"Basic abc def\",\"port\":1}"}`:    `{"msg":"{\"Authorization\":…,\"port\":1}"}`,
		`{"msg":"{\"api_key\":\"cut_of`:                                 `{"msg":"{\"api_key\":…`,
		`{"msg":"{\"tokens\":\"many\",\"model\":\"m\"}"}`:               `{"msg":"{\"tokens\":\"many\",\"model\":\"m\"}"}`,
		`{"msg":"the name is \"api_key\"","n":"x y"}`:                   `{"msg":"the name is \"api_key\"","n":"x y"}`,
	} {
		if got := Text(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// Engines log command lines as lists, headers as pairs, and values as their language writes them.
func TestX15_TextHidesWhatProgramsPrint(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`Command '['python','--api-key','s3cretvalue99']' returned 1`:          `Command '['python','--api-key',…]' returned 1`,
		`["vllm","--api-key","a b\"c", "--port", "80"]`:                        `["vllm","--api-key",…, "--port", "80"]`,
		`{"args":"[\"--api-key\", \"hunter2hunter\", \"-x\"]"}`:                `{"args":"[\"--api-key\", …, \"-x\"]"}`,
		`["--api-key", "--max-tokens", "5"], ["--tokens", "5"]`:                `["--api-key", …, "5"], ["--tokens", "5"]`,
		`api_key=SecretStr('s3cretvalue99') port=1`:                            `api_key=…) port=1`,
		`api_key=pydantic.SecretBytes(b'a b') port=1`:                          `api_key=…) port=1`,
		`{b'x-api-key': b's3cretvalue99', b'host': b'h'}`:                      `{b'x-api-key': …, b'host': b'h'}`,
		`headers [(b'x-api-key', b'hunter2hunter'), (b'host', b'h')]`:          `headers [(b'x-api-key', …), (b'host', b'h')]`,
		`('api-key', 'hunter2hunter'), ("max_tokens", "5")`:                    `('api-key', …), ("max_tokens", "5")`,
		`{"api_key"=>"hunter2 hunter", "port" => 1}`:                           `{"api_key"=>…, "port" => 1}`,
		`key := "hunter2 hunter"`:                                              `key := …`,
		`{"a":"{\"b\":\"{\\\"api_key\\\":\\\"hunter2\\\",\\\"port\\\":1}\"}"}`: `{"a":"{\"b\":\"{\\\"api_key\\\":…",\\\"port\\\":1}\"}"}`,
		`special tokens ['bos_token', 'eos_token'], password: can't say it's`:  `special tokens ['bos_token', 'eos_token'], password: …'t say it's`,
	} {
		if got := Text(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// The time that Text takes grows with the length of the text, and no faster. Garbage collection
// makes single measurements longer, so the least one of each length counts, until they agree.
func TestX15_TextIsLinear(t *testing.T) {
	t.Parallel()
	for _, part := range []string{"key=[", "tokens=[", `key=["`, `key="\"`, `key=[\"`, `key=['a',"`, `key=["key=[",`, "key='", "--key [", "keykey", `key=[",'`, `key=\"`, `key\":[\"`,
		`key=a(`, `key=b'`, `key=a("\"`, `"--key","`, `("key",'`, `"--key",[`, `key=\\"`} {
		short, long := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
		testutil.Eventually(t, fmt.Sprintf("%q takes 16 times as long for 16 times the length", part), func() bool {
			short = min(short, timeOf(t, strings.Repeat(part, 250)))
			long = min(long, timeOf(t, strings.Repeat(part, 4_000)))
			return long < 64*short // with the square of the length it would be 256 times
		})
	}
}

// timeOf returns the time of a processor that Text takes.
func timeOf(t *testing.T, text string) time.Duration {
	return testutil.ProcessorTime(t, func() { Text(text) })
}

func TestX15_RedactorHidesItsValues(t *testing.T) {
	t.Parallel()
	r := ForEnvironment(map[string]string{
		"LEVEL": "verbose", "MY_API_KEY": "plainlooking", "MODE_KEY": "on", "ANY": "first line\nsecond line\n", "SHORT": "12345",
	}, []string{"ANY", "SHORT", "ABSENT"})
	for text, want := range map[string]string{
		"logging is verbose, on: 12345": "logging is verbose, on: 12345",
		"read plainlooking/x":           "read …/x",
		"a second line, a first line":   "a …, a …",
	} {
		if got := r.Text(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := New("abcdef", "abcdefgh").Text("abcdefgh abcdef"); got != "… …" {
		t.Errorf("a value that begins with another: %q", got)
	}
}

func FuzzText(f *testing.F) {
	f.Add("api_key=x --token y Bearer z https://u:p@h/", "secret-value")
	f.Fuzz(func(t *testing.T, text, value string) {
		r := New(value)
		got := r.Text(text + value)
		if len(r.values) == 1 && !strings.Contains(value, "…") && strings.Contains(got, r.values[0]) {
			t.Errorf("the value is left in %q", got)
		}
	})
}
