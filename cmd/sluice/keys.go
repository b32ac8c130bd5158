package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/adminclient"
	"github.com/sluice-gateway/sluice/internal/usage"
)

// keysPath is the path of the keys in the admin API.
const keysPath = "/api/v1/keys"

// keyRow is what commands show of a key.
type keyRow struct {
	ID       string    `json:"id"`
	UsageKey string    `json:"usage_key"`
	Name     string    `json:"name"`
	Created  time.Time `json:"created"`
	Expires  time.Time `json:"expires"`
	LastUsed time.Time `json:"last_used"`
	Models   []string  `json:"models"`
	Source   string    `json:"source"`

	Limits  map[string]int64 `json:"limits"`
	Budgets []keyBudget      `json:"budgets"`
}

// keyList is the answer of the list of keys.
type keyList struct {
	Keys []keyRow `json:"keys"`
	// Fault says why the list lacks keys, or has those of before; empty: it is right.
	Fault string `json:"fault"`
}

func newKeysCommand() *cobra.Command {
	var flags viewFlags
	k := &cobra.Command{Use: "keys", Short: "Make, list and revoke API keys"}
	flags.addFlags(k)
	k.AddCommand(
		newKeyCommand(&flags),
		&cobra.Command{
			Use: "list", Short: "List the keys, those of the file and those made at run time", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				var list keyList
				return flags.show(cmd, keysPath, &list, func(w io.Writer) { list.write(w, terminalColumns(cmd)) })
			},
		},
		&cobra.Command{
			Use: "revoke ID", Args: cobra.ExactArgs(1),
			Short: "End a key that was made at run time, at all gateways within a second (ID: as in the column KEY, with or without the tenant)",
			RunE:  flags.act(http.MethodDelete, keysPath+"/%s", "the key %s is revoked"),
		},
	)
	return k
}

// write writes the table of keys for a terminal with this number of columns. 0 means that the
// output is no terminal.
func (l keyList) write(w io.Writer, columns int) {
	if l.Fault != "" {
		fmt.Fprintln(w, l.Fault)
	}
	if len(l.Keys) == 0 {
		if l.Fault == "" {
			fmt.Fprintln(w, "There is no key.")
		}
		return
	}
	t := newTable("KEY", "NAME", "MODELS", "LIMITS", "CREATED", "EXPIRES", "LAST USED", "SOURCE")
	for _, k := range l.Keys {
		t.add(k.UsageKey, k.Name, strings.Join(k.Models, ","), k.limits(), keyTime(k.Created), keyTime(k.Expires), keyTime(k.LastUsed), k.Source)
	}
	t.writeWithin(w, columns, "SOURCE", "CREATED", "LAST USED", "MODELS", "NAME", "EXPIRES")
}

func (k keyRow) limits() string {
	var all []string
	for _, l := range [...]struct{ name, unit string }{
		{"requests_per_minute", "req/min"}, {"tokens_per_minute", "tok/min"}, {"max_concurrent_streams", "at once"},
	} {
		if n := k.Limits[l.name]; n > 0 {
			all = append(all, fmt.Sprintf("%d %s", n, l.unit))
		}
	}
	for _, b := range k.Budgets {
		if b.Hard > 0 {
			all = append(all, fmt.Sprintf("%s %s/%s", number(b.Hard), b.unit(), b.Per))
		}
	}
	return strings.Join(all, ", ")
}

// keyBudget is a budget of a key. The JSON is that of the API.
type keyBudget struct {
	Per  string  `json:"per"`
	Of   string  `json:"of"`
	Hard float64 `json:"hard"`
}

// flag is the name of the flag that sets the budget of a new key.
func (b keyBudget) flag() string { return b.Of + "-per-" + b.Per }

// unit is the word for what the budget counts.
func (b keyBudget) unit() string {
	if b.Of == string(usage.OfTokens) {
		return "tok"
	}
	return b.Of
}

// keyTime is a time of a key in UTC; empty if there is none.
func keyTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// newKey is what an operator asks for. The JSON is that of the API. A gateway that an upgrade has
// not replaced yet knows no budgets, and refuses fields that it does not know.
type newKey struct {
	Tenant  string         `json:"tenant"`
	Name    string         `json:"name"`
	Models  []string       `json:"models"`
	Limits  map[string]int `json:"limits"`
	Budgets []keyBudget    `json:"budgets,omitempty"`
	Expires *time.Time     `json:"expires"`
}

// keyFlags are the flags of the command that makes a key.
type keyFlags struct {
	newKey
	requests, tokens, atOnce int
	budgets                  []*keyBudget
	expires                  time.Duration
	printOnly                bool
}

func newKeyCommand(flags *viewFlags) *cobra.Command {
	k := keyFlags{budgets: newKeyBudgets()}
	c := &cobra.Command{
		Use:   "new --tenant NAME",
		Short: "Make an API key at the running gateway; with --print, or if no gateway answers, print a key and its hash for the file",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := k.read(cmd.Flags()); err != nil {
				return fmt.Errorf("keys new: %w", err)
			}
			if k.printOnly {
				return printKey(cmd.OutOrStdout(), k.Tenant)
			}
			return flags.makeKey(cmd, k.newKey, k.isPlain())
		},
	}
	f := c.Flags()
	f.StringVar(&k.Tenant, "tenant", "", "the tenant's name")
	f.StringVar(&k.Name, "name", "", "what you call the key")
	f.StringSliceVar(&k.Models, "models", nil, "the models and pools that the key may use, such as chat,embed (default: those of the tenant)")
	f.IntVar(&k.requests, "requests-per-minute", 0, "the requests of the key per minute, beside the limits of its tenant (default: no limit)")
	f.IntVar(&k.tokens, "tokens-per-minute", 0, "the tokens of the key per minute (default: no limit)")
	f.IntVar(&k.atOnce, "max-concurrent", 0, "the requests of the key that run or wait at once (default: no limit)")
	for _, b := range k.budgets {
		f.Float64Var(&b.Hard, b.flag(), 0, fmt.Sprintf("the %s of the key per %s of the calendar in UTC (default: no budget)", b.Of, b.Per))
	}
	f.DurationVar(&k.expires, "expires", 0, "how long the key is good, such as 720h (default: without end)")
	f.BoolVar(&k.printOnly, "print", false, "only print a key and its hash for the configuration file")
	return c
}

// read checks the flags and completes newKey by them.
func (k *keyFlags) read(given *pflag.FlagSet) error {
	if k.Tenant == "" {
		return errors.New("--tenant is empty: set it to the name of the tenant")
	}
	if given.Changed("models") && len(k.Models) == 0 {
		return errors.New("--models is empty: name a model, or leave the flag out if the key may use all models of its tenant")
	}
	if given.Changed("expires") {
		if k.expires <= 0 {
			return fmt.Errorf("--expires is %v: it must be more than 0", k.expires)
		}
		k.Expires = new(time.Now().Add(k.expires).UTC())
	}
	k.Limits = map[string]int{"requests_per_minute": k.requests, "tokens_per_minute": k.tokens, "max_concurrent_streams": k.atOnce}
	for _, b := range k.budgets {
		switch {
		case !given.Changed(b.flag()):
		case !(b.Hard > 0) || math.IsInf(b.Hard, 1): // not a number is not above 0, either
			return fmt.Errorf("--%s is %v: it must be a number above 0", b.flag(), b.Hard)
		default:
			k.Budgets = append(k.Budgets, *b)
		}
	}
	if k.printOnly && !k.isPlain() {
		return errors.New("--print takes --tenant alone: what else the key has is written into the file by hand")
	}
	return nil
}

// isPlain reports whether the key has only a tenant.
func (k *keyFlags) isPlain() bool {
	return k.Name == "" && len(k.Models) == 0 && k.requests == 0 && k.tokens == 0 && k.atOnce == 0 && k.Expires == nil && len(k.Budgets) == 0
}

// newKeyBudgets returns the budgets that flags may set, empty.
func newKeyBudgets() []*keyBudget {
	var all []*keyBudget
	for _, of := range []usage.Measure{usage.OfTokens, usage.OfCost} {
		for _, per := range []usage.Span{usage.PerDay, usage.PerMonth} {
			all = append(all, &keyBudget{Of: string(of), Per: string(per)})
		}
	}
	return all
}

// makeKey makes a key at the running gateway. Without a gateway, a plain key, which has only a
// tenant, is printed for the file.
func (v *viewFlags) makeKey(cmd *cobra.Command, asked newKey, plain bool) error {
	client, err := v.open()
	if err != nil {
		return err
	}
	var made struct {
		keyRow
		Secret string `json:"key"`
	}
	err = v.do(cmd, client, action{http.MethodPost, keysPath, asked}, &made, func(w io.Writer) {
		fmt.Fprintf(w, "key (shown only once): %s\nid: %s\n", made.Secret, made.ID)
	})
	if unreachable := new(adminclient.UnreachableError); errors.As(err, &unreachable) && plain && v.output == outputTable {
		fmt.Fprintln(cmd.ErrOrStderr(), "no gateway answers, so this key is for the file:")
		return printKey(cmd.OutOrStdout(), asked.Tenant)
	}
	return err
}

// printKey prints a new key, and what the file needs for it.
func printKey(w io.Writer, tenant string) error {
	k := authz.NewKey()
	_, err := fmt.Fprintln(w, strings.TrimSpace(fmt.Sprintf(`
key (shown only once): %s

tenants:
  - name: %s
    keys: ["%s"]  # id %s
    models: ["*"]`, k.Secret, tenant, k.Hash, authz.FileKeyID(k.Hash))))
	return err
}
