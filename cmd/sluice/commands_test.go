package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-gateway/sluice/internal/weights"
)

// execute runs the program with arguments, and returns what it prints.
func execute(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, _, err := executeBoth(t, args...)
	return out, err
}

// executeBoth is execute that returns the standard error, too.
func executeBoth(t *testing.T, args ...string) (string, string, error) {
	t.Helper()
	c, out, said := newCommand(), new(bytes.Buffer), new(bytes.Buffer)
	c.SetArgs(args)
	c.SetOut(out)
	c.SetErr(said)
	err := c.Execute()
	return out.String(), said.String(), err
}

// `sluice bootstrap` says with which drain time Envoy must start. With that of Envoy itself, 10
// minutes, a listener that changes would cut streams that may take longer.
func TestB11_BootstrapSaysTheDrainTime(t *testing.T) {
	t.Parallel()
	for model, want := range map[string]string{"": "1860", "stream: {max_duration: 2h}": "7260", "stream: {max_duration: 5m}": "1860"} {
		dir := t.TempDir()
		file := filepath.Join(dir, "sluice.yaml")
		text := "state_dir: " + filepath.Join(dir, "state") + "\nmodels:\n  - {name: m, launcher: upstream, upstreams: [{url: \"http://127.0.0.1:1\"}], " + model + "}\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, said, err := executeBoth(t, "bootstrap", "-c", file)
		if err != nil || !json.Valid([]byte(out)) || !strings.Contains(said, "--drain-time-s "+want+"\n") {
			t.Errorf("%q: %v, prints %.80q, says %q", model, err, out, said)
		}
	}
}

// A command that cannot look for ./sluice.yaml says what to do, as in the folder of another user.
func TestO8_AFileThatCannotBeLookedFor(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Symlink(foundFile, foundFile); err != nil {
		t.Fatal(err)
	}
	if _, err := execute(t, "status"); err == nil || !strings.Contains(err.Error(), "name a file by -c FILE") {
		t.Errorf("%v, want it to say what to do", err)
	}
}

// A gateway cannot read a pipe again, for a reload or a restart.
func TestO8_APipeIsNoFileOfAGateway(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"up", "serve"} {
		if _, err := execute(t, command, "-c", pipe); err == nil || !strings.HasPrefix(err.Error(), pipe+" is a pipe") {
			t.Errorf("%s: %v", command, err)
		}
	}
}

// A name that is no command fails, so that a script notices it.
func TestO8_UnknownCommandsFail(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"keys", "revok", "1"}, {"replicas", "drian", "chat-0"}, {"admin", "x"}, {"node", "tokn"}, {"requests", "cancl"}, {"no"}} {
		if out, err := execute(t, args...); err == nil {
			t.Errorf("%v succeeds and prints %q", args, out)
		}
	}
	if _, err := execute(t, "keys", "revok"); err == nil || err.Error() != `sluice keys has no command "revok": use list, new, revoke` {
		t.Errorf("the error is %v", err)
	}
	if _, err := execute(t, "models", "drian", "chat"); err == nil || err.Error() != `sluice models has no command "drian": use drain, restart, scale, undrain` {
		t.Errorf("the error is %v", err)
	}
	for args, want := range map[string]string{
		"frobnicate":      "sluice has no command \"frobnicate\": `sluice --help` lists the commands",
		"statsu":          "sluice has no command \"statsu\": did you mean status? `sluice --help` lists the commands",
		"statsu -o json":  "sluice has no command \"statsu\": did you mean status? `sluice --help` lists the commands",
		"keys revok 1 -x": `sluice keys has no command "revok": use list, new, revoke`,
	} {
		if out, err := execute(t, strings.Fields(args)...); err == nil || err.Error() != want || out != "" {
			t.Errorf("sluice %s: the error is %v, want %s; prints %q", args, err, want, out)
		}
	}
	if out, err := execute(t, "keys"); err != nil || !strings.Contains(out, "Make, list and revoke API keys") {
		t.Errorf("without a name: %v, %q", err, out)
	}
}

// A wrong --output is answered by the values that the command knows.
func TestO8_WrongOutputNamesTheOthers(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{"usage -o xml": `--output is "xml": use table or csv or json`, "ps -o csv": `--output is "csv": use table or json`} {
		if _, err := execute(t, strings.Fields(args)...); err == nil || err.Error() != want {
			t.Errorf("sluice %s: the error is %v, want %s", args, err, want)
		}
	}
}

// Wrong arguments are answered by how the command is called.
func TestO8_WrongArgumentsShowTheCommand(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"models drain":             "an argument is missing: the command is `sluice models drain MODEL [flags]`",
		"models drain a b":         "\"b\" is one argument too many: the command is `sluice models drain MODEL [flags]`",
		"ps extra":                 "\"extra\" is one argument too many: the command is `sluice ps [--model NAME] [flags]`",
		"admin token":              "an argument is missing: the command is `sluice admin token NAME [flags]`",
		"requests cancel":          "an argument is missing: the command is `sluice requests cancel REQUEST [flags]`",
		"import":                   "an argument is missing: the command is `sluice import FILE [flags]`",
		"status a.yaml":            `"a.yaml" is a configuration file: name it by -c a.yaml`,
		"up ./a.yml":               `"./a.yml" is a configuration file: name it by -c ./a.yml`,
		"reload -c a --admin b":    "--admin and --config exclude each other: give one of them",
		"reload --force --dry-run": "--dry-run and --force exclude each other: give one of them",
		"envoy /usr/bin/nix":       "\"/usr/bin/nix\" is one argument too many: the command is `sluice envoy [flags]`",
		"node":                     "--join is missing: the command is `sluice node --join HOST:PORT [flags]`",
		"bootstrap":                "--config is missing: the command is `sluice bootstrap -c FILE [flags]`",
		"up -c no --envoy no":      "no: cannot be read: no such file or directory",
		"ps --bogus":               "unknown flag: --bogus: `sluice ps --help` lists the flags",
		"logs chat-0 --tail":       "flag needs an argument: --tail: `sluice logs --help` lists the flags",
		"logs chat-0 --tail x":     `--tail is "x": use a whole number`,
		"top --interval 2":         `--interval is "2": use a time such as 30s or 5m`,
		"sim --seed -1":            `--seed is "-1": use a whole number from 0`,
		"sim --prefill-rate fast":  `--prefill-rate is "fast": use a number`,
		`keys new --models cha"t`:  `--models is "cha\"t": use names with commas between them`,
		"reload --force=perhaps":   `--force is "perhaps": use true or false`,
	} {
		if _, err := execute(t, strings.Fields(args)...); err == nil || err.Error() != want {
			t.Errorf("sluice %s: the error is %v, want %s", args, err, want)
		}
	}
}

// `sluice keys new` makes no key that may more than was asked for.
func TestO8_KeysNewMakesWhatIsAskedFor(t *testing.T) {
	t.Parallel()
	var asked map[string]any
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewDecoder(r.Body).Decode(&asked)
		_, _ = io.WriteString(w, `{"key":"sk-x","id":"1"}`)
	}))
	defer server.Close()
	for _, test := range []struct{ args, fault string }{
		{"--expires -1h", "--expires is -1h0m0s: it must be more than 0"},
		{"--expires 0s", "--expires is 0s: it must be more than 0"},
		{"--tokens-per-day 0", "--tokens-per-day is 0: it must be a number above 0"},
		{"--tokens-per-month NaN", "--tokens-per-month is NaN: it must be a number above 0"},
		{"--cost-per-day Inf", "--cost-per-day is +Inf: it must be a number above 0"},
		{"--cost-per-month -1", "--cost-per-month is -1: it must be a number above 0"},
		{"--models=", "--models is empty: name a model"},
		{"--print --models=", "--models is empty: name a model"},
		{"--print --models embed", "--print takes --tenant alone"},
		{"--print --expires 1h", "--print takes --tenant alone"},
	} {
		out, err := execute(t, append([]string{"keys", "new", "--tenant", "acme", "--admin", server.URL}, strings.Fields(test.args)...)...)
		if err == nil || !strings.Contains(err.Error(), test.fault) || out != "" || asked != nil {
			t.Errorf("%s: %v, prints %q, asks for %v", test.args, err, out, asked)
		}
	}
	if out, err := execute(t, "keys", "new", "--tenant", "acme", "--print"); err != nil || !strings.Contains(out, `keys: ["sha256:`) {
		t.Errorf("--print: %v, %q", err, out)
	}
	out, err := execute(t, "keys", "new", "--tenant", "acme", "--expires", "1h", "--admin", server.URL)
	if err != nil || out != "key (shown only once): sk-x\nid: 1\n" || asked["expires"] == nil {
		t.Errorf("%v, prints %q, asks for %v", err, out, asked)
	}
	if _, there := asked["budgets"]; there {
		t.Errorf("asks for %v, which a gateway of before the upgrade refuses", asked)
	}
}

// -o json prints what the admin API answers, also of what changes something.
func TestO8_ActionsPrintJSON(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"key":"sk-x","id":"1","min":1}`)
	}))
	defer server.Close()
	for _, args := range []string{"keys new --tenant acme", "keys revoke 1", "models drain chat", "models scale chat --min 1", "replicas restart chat-0", "requests cancel 1"} {
		out, err := execute(t, append(strings.Fields(args), "-o", "json", "--admin", server.URL)...)
		if err != nil || out != "{\n  \"key\": \"sk-x\",\n  \"id\": \"1\",\n  \"min\": 1\n}\n" {
			t.Errorf("%s: %v, %q", args, err, out)
		}
	}
}

// A log without a line that is asked for is said to have none, beside the output.
func TestO8_LogsWithoutALine(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("search") == "there" {
			_, _ = io.WriteString(w, "it is there\n")
		}
	}))
	defer server.Close()
	for args, want := range map[string][2]string{
		"":               {"", "The log of chat-0 has no line.\n"},
		"--search none":  {"", "No line with \"none\" was found in the log of chat-0.\n"},
		"--search there": {"it is there\n", ""},
		"--tail 0":       {"", ""},
	} {
		out, said, err := executeBoth(t, append([]string{"logs", "chat-0", "--admin", server.URL}, strings.Fields(args)...)...)
		if err != nil || out != want[0] || said != want[1] {
			t.Errorf("%q: %v, %q, %q, want %q", args, err, out, said, want)
		}
	}
}

// Without a place for a temporary state directory, `sluice up` says what it needs.
func TestO8_UpNeedsATemporaryDirectory(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "missing"))
	if _, err := temporaryStateDir(); err == nil || !strings.Contains(err.Error(), "set TMPDIR to a directory that this user may write") {
		t.Errorf("the error is %v", err)
	}
}

// Every command refuses a wrong --log-level and --log-format, also one that logs nothing.
func TestO8_WrongLogFlagsAreRefused(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"schema --log-level loud":    `log level "loud": want debug, info, warn or error`,
		"keys list --log-format xml": `log format "xml": want auto, json or console`,
	} {
		if out, err := execute(t, strings.Fields(args)...); err == nil || err.Error() != want || out != "" {
			t.Errorf("sluice %s: the error is %v, want %s", args, err, want)
		}
	}
}

// The commands that Cobra adds fail on unknown names, too.
func TestO8_UnknownHelpTopicsAndShellsFail(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"completion nosuch":  `sluice completion has no command "nosuch": use bash, fish, powershell, zsh`,
		"help nosuch":        "sluice has no command \"nosuch\": `sluice --help` lists the commands",
		"help models nosuch": `sluice models has no command "nosuch": use drain, restart, scale, undrain`,
	} {
		if out, err := execute(t, strings.Fields(args)...); err == nil || !strings.HasPrefix(err.Error(), want) || out != "" {
			t.Errorf("sluice %s: the error is %v, want %s", args, err, want)
		}
	}
	for args, want := range map[string]string{
		"":              "sluice COMMAND\n\nAvailable Commands:",
		"help":          "An LLM inference gateway around Envoy",
		"help models":   "sluice models",
		"help keys new": "--tenant",
		"completion":    "bash",
	} {
		if out, err := execute(t, strings.Fields(args)...); err != nil || !strings.Contains(out, want) {
			t.Errorf("sluice %s: the error is %v, and it prints %.100q", args, err, out)
		}
	}
}

// A wrong list of dimensions is refused by the name of the flag, before a gateway is asked.
func TestO4_UsageRefusesWrongDimensions(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"x", "tenant,tenant", "tenant,", ""} {
		want := "--by: \"" + by + "\" must be a list of tenant, key, model, hour, day and month, each at most once"
		if _, err := execute(t, "usage", "--by", by, "--admin", "127.0.0.1:1"); err == nil || err.Error() != want {
			t.Errorf("the error is %v, want %s", err, want)
		}
	}
}

// Someone who fetches weights without a network is told so at once, and not after the last try.
func TestFetchTellsOfAHubThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	show := progressLines(&text)
	for _, trouble := range []string{"", "next try in 1s: connection refused", "next try in 2s: connection refused"} {
		show(weights.Progress{Trouble: trouble})
	}
	if got := strings.Count(text.String(), "connection refused\n"); got != 2 {
		t.Errorf("%d of 2 failures are told:\n%s", got, &text)
	}
}

// A file that is valid by --listen alone can be restarted, too.
func TestX20_RestartReadsTheFileAsUpDoes(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "sluice.yaml")
	text := "state_dir: " + filepath.Join(dir, "state") + "\nauth: {mode: none}\nmodels: [{name: m, launcher: none}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := execute(t, "restart", "-c", file); err == nil || !strings.Contains(err.Error(), "auth.mode") {
		t.Errorf("with the address of the file: %v", err)
	}
	if _, err := execute(t, "restart", "-c", file, "--listen", "127.0.0.1:8080"); err == nil || !strings.Contains(err.Error(), "no gateway runs") {
		t.Errorf("with that of the flag: %v", err)
	}
}
