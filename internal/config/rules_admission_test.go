package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// redisCases are the cases about the URL of Redis.
func redisCases() []ruleCase {
	const (
		scheme   = "1: redis: must be a URL such as redis://127.0.0.1:6379/0, or rediss:// for TLS"
		hosts    = "1: redis: must name its hosts as host or host:port, with commas between several"
		once     = "1: redis: must name each host once"
		password = "1: redis: must give the password as user:password@ or :password@, with %XX for each of / ? # @ and % in it"
		database = "1: redis: must end with the host and port, or with the number of a database such as /0"
		cluster  = "1: redis: must have no database number with several hosts, because a Redis Cluster has none; hosts of sentinels need sentinel"
	)
	urls := map[string]string{
		"":                                  "",
		"redis://h":                         "",
		"redis://h/":                        "",
		"redis://10.0.0.2:6379/15":          "",
		"redis://[::1]:6379/0":              "",
		"rediss://user:secret@redis.host:1": "",
		"redis://:se%2Fcr%40et@h/1":         "",
		"redis://:a,b:c@h:1,h:2":            "",
		"redis://a:1,b:2,[::1]:3/":          "",
		"redis://h:1,h:1":                   "", // one name for all nodes of a cluster

		"h:6379":                        scheme,
		"http://h:6379":                 scheme,
		"unix:///run/secret.sock":       scheme,
		"redis:h":                       scheme,
		"redis://":                      hosts,
		"redis:///0":                    hosts,
		"redis://h:":                    hosts,
		"redis://h:0":                   hosts,
		"redis://h:secret":              hosts,
		"redis://a:1,":                  hosts,
		"redis://a:1,,b:1":              hosts,
		"redis://a:1 b:1":               hosts,
		"redis://secret@h":              password,
		"redis://user:@h":               password,
		"redis://user:se%cret@h":        password,
		"redis://user:se/cret@h":        password,
		"redis://:p#w@h:6379":           password,
		"redis://u:secret@a,u:secret@b": password,
		"redis://h/secret":              database,
		"redis://h/0/1":                 database,
		"redis://h/-1":                  database,
		"redis://h/01":                  database,
		"redis://h/%zz":                 database,
		"redis://h?db=1":                database,
		"redis://h?":                    database,
		"redis://h/0#secret":            database,
		"redis://a,b/0":                 cluster,
	}
	var cases []ruleCase
	for _, url := range slices.Sorted(maps.Keys(urls)) {
		c := ruleCase{name: "redis " + url, file: "redis: '" + url + "'"}
		if want := urls[url]; want != "" {
			c.want = []string{want}
		}
		cases = append(cases, c)
	}
	for _, c := range [][2]string{
		{`{url: "redis://a,b:1/2", sentinel: {master: m}}`, ""},
		{`{url: "rediss://u:p@a,b", server_name: h, sentinel: {master: m, username: u, password: secret}}`, ""},
		{`{url: redis://h}`, ""},
		{`{url: ""}`, "1: redis.url: needs url, such as redis://127.0.0.1:6379/0"},
		{`{sentinel: {master: m}}`, "1: redis: needs url, such as redis://127.0.0.1:6379/0"},
		{`{url: http://h}`, strings.Replace(scheme, "redis:", "redis.url:", 1)},
		{`{url: "redis://a,b/2"}`, strings.Replace(cluster, "redis:", "redis.url:", 1)},
		{`{url: "redis://a,b,A:26379", sentinel: {master: m}}`, strings.Replace(once, "redis:", "redis.url:", 1)},
		{`{url: redis://h, sentinel: {}}`, "1: redis.sentinel.master: required, and missing"},
		{`{url: redis://h, sentinel: {master: ""}}`, "1: redis.sentinel.master: must be the name of the master in the configuration of the sentinels, is empty"},
		{`{url: redis://h, sentinel: {master: m, username: u}}`, "1: redis.sentinel.username: has no effect without a password: set password, or remove username"},
		{`{url: redis://h, ca: ca.crt}`, "1: redis.ca: has no effect without TLS: begin url with rediss://, or remove ca"},
		{`{url: redis://h, server_name: h}`, "1: redis.server_name: has no effect without TLS: begin url with rediss://, or remove server_name"},
		{`{url: rediss://h, key: a.key}`, "1: redis.key: needs cert as well: a certificate and its key belong together"},
		{`{url: rediss://h, cert: a.crt}`, "1: redis.cert: needs key as well: a certificate and its key belong together"},
	} {
		one := ruleCase{name: "redis " + c[0], file: "redis: " + c[0]}
		if c[1] != "" {
			one.want = []string{c[1]}
		}
		cases = append(cases, one)
	}
	return cases
}

// tenantCases are the cases about tenants, their keys and limits.
func tenantCases() []ruleCase {
	const twoModels = "models: [{name: free, launcher: none}, {name: dear, launcher: none, aliases: [d], adapters: [lora], prices: {completion: 1}}]"
	const counts = "is cost, but no model that the tenant or key may use has prices, so it would count nothing: give one of them prices, or bound tokens"
	const hash = "must be sha256: and 64 hex digits, the hash that `sluice keys new` prints, never a key itself"
	raised := func(tenant, key string) []string {
		return []string{fmt.Sprintf("1: tenants[a].keys[0].priority: must be %s, which is the priority of the tenant, or lower, is %s: "+
			"a key cannot raise the priority of its tenant", tenant, key)}
	}
	cases := []ruleCase{
		{"key as a mapping without priority", "tenants: [{name: a, keys: [{hash: " + ones + "}]}]", nil},
		{"key as a mapping without hash", "tenants: [{name: a, keys: [{priority: batch}]}]", []string{"1: tenants[a].keys[0].hash: required, and missing"}},
		{"key as an empty mapping", "tenants: [{name: a, keys: [{}]}]", []string{"1: tenants[a].keys[0].hash: required, and missing"}},
		{"key as nothing", "tenants: [{name: a, keys: [~]}]", []string{"1: tenants[a].keys[0]: must be text, is nothing"}},
		{"key that is empty", "tenants: [{name: a, keys: ['']}]", []string{"1: tenants[a].keys[0]: " + hash}},
		{"key as a list", "tenants: [{name: a, keys: [[sk-secret]]}]", []string{"1: tenants[a].keys[0]: must be a hash or a mapping with hash, is a list"}},
		{"a key itself as hash", "tenants:\n- name: a\n  keys:\n  - priority: batch\n    hash: sk-secret", []string{"5: tenants[a].keys[0].hash: " + hash}},
		{"a key that ends", "tenants:\n- name: a\n  keys: [{hash: " + zeros + ", expires: tomorrow}]", []string{
			`3: tenants[a].keys[0].expires: must be a time such as 2027-01-31T18:00:00Z or 2027-01-31, is text`}},
		{"a key that has ended at the beginning of time", "tenants:\n- name: a\n  keys: [{hash: " + zeros + ", expires: 0001-01-01}]", []string{
			`3: tenants[a].keys[0].expires: must be later than 0001-01-01`}},
		{"a key that ends on a day", "tenants:\n- name: a\n  keys: [{hash: " + zeros + ", expires: 2027-01-31}]", nil},
		{"a key that ends at a time", "tenants:\n- name: a\n  keys: [{hash: " + zeros + ", expires: 2027-01-31T18:00:00+01:00}]", nil},
		{"a key itself as a field", "tenants:\n- name: a\n  keys:\n  - hash: " + ones + "\n    sk-secret: batch",
			[]string{"5: tenants[a].keys[0]: has an unknown field; known are hash, name, priority, models, limits, budgets, expires"}},
		{"a key itself as a name", "tenants: [{name: a, keys: [{name: sk-secret, hash: " + ones + "}]}]",
			[]string{"1: tenants[a].keys[0].name: must be at most 100 bytes and not begin with sk-, as a key does"}},
		{"unknown model of a key", "models: [{name: m, engine: sim, task: text-generation}]\ntenants: [{name: a, keys: [{models: [x], hash: " + ones + "}]}]",
			[]string{"2: tenants[a].keys[0].models[0]: there is no model x; known are m, \"*\""}},
		{"key twice, once as a mapping", "tenants: [{name: a, keys: [" + ones + "]}, {name: b, keys: [{hash: " + ones + "}]}]",
			[]string{"1: tenants[b].keys[0].hash: the same key is on line 1, at tenants[a].keys[0]: remove one of them"}},
		{"budgets", "models: [{name: m, launcher: none, prices: {completion: 1}}]\ntenants: [{name: a, budgets: [{per: day, soft: 1000}, {per: day, of: cost, hard: 0.5}], keys: [{budgets: [{per: month, soft: 1, hard: 1}], hash: " + ones + "}]}]", nil},
		{"a budget of cost without prices", "models: [{name: m, launcher: none, prices: {prompt: 0}}]\ntenants: [{name: a, budgets: [{per: day, of: cost, hard: 5}]}]",
			[]string{"2: tenants[a].budgets[0].of: is cost, but no model of the file has prices, so it would count nothing: give models prices, or bound tokens"}},
		{"budgets of cost of who may use only models without prices", twoModels + "\ntenants: [{name: a, models: [free], budgets: [{per: day, of: cost, hard: 5}]}, " +
			"{name: b, keys: [{models: [free], budgets: [{per: day, of: cost, hard: 5}], hash: " + ones + "}]}]",
			[]string{"2: tenants[a].budgets[0].of: " + counts, "2: tenants[b].keys[0].budgets[0].of: " + counts}},
		{"budgets of cost of who may use a model with prices", twoModels + "\ntenants: [{name: a, models: [lora], budgets: [{per: day, of: cost, hard: 5}]}, " +
			"{name: b, models: [d], keys: [{models: [\"*\"], budgets: [{per: day, of: cost, hard: 5}], hash: " + ones + "}]}, {name: out, models: [], budgets: [{per: day, of: cost, hard: 5}]}]", nil},
		{"a budget of cost where prices may come", "kubernetes: {custom_resources: true}\ntenants: [{name: a, budgets: [{per: day, of: cost, hard: 5}]}]", nil},
		{"a budget of nothing", "tenants: [{name: a, budgets: [{per: day}]}]", []string{"1: tenants[a].budgets[0]: needs soft, hard or both, above 0"}},
		{"a budget without a span", "tenants: [{name: a, budgets: [{soft: 1}]}]", []string{"1: tenants[a].budgets[0].per: required, and missing"}},
		{"a budget of a year", "tenants: [{name: a, budgets: [{per: year, soft: 1}]}]", []string{"1: tenants[a].budgets[0].per: must be one of day, month, is year"}},
		{"a soft bound above the hard one", "tenants: [{name: a, keys: [{budgets: [{per: day, soft: 2, hard: 1.5}], hash: " + ones + "}]}]",
			[]string{"1: tenants[a].keys[0].budgets[0].soft: must not be above hard, which is 1.5"}},
		{"a budget of a month that is not kept", "usage: {hourly_days: 1, daily_days: 30}\ntenants: [{name: a, budgets: [{per: month, soft: 1}]}]",
			[]string{"2: tenants[a].budgets[0].per: is month, but usage.daily_days keeps 30 days: a restart would forget the rest of the month"}},
		{"a budget below 0", "tenants: [{name: a, budgets: [{per: day, soft: -1}]}]", []string{"1: tenants[a].budgets[0].soft: must be at least 0, is -1"}},
		{"two budgets of one thing", "tenants: [{name: a, budgets: [{per: day, soft: 1}, {per: day, hard: 2}]}]",
			[]string{"1: tenants[a].budgets[1]: there is a budget of tokens per day already: give it both soft and hard"}},
		{"unknown priority of a key", "tenants: [{name: a, keys: [{hash: " + ones + ", priority: low}]}]",
			[]string{"1: tenants[a].keys[0].priority: must be one of interactive, default, batch, is low"}},
		{"unknown priority of a tenant", "tenants: [{name: a, priority: low, keys: [{hash: " + ones + ", priority: batch}]}]",
			[]string{"1: tenants[a].priority: must be one of interactive, default, batch, is low"}},
		{"too much weight", "tenants: [{name: a, weight: 1000001}]", []string{"1: tenants[a].weight: must be at most 1000000, is 1000001"}},
		{"no weight", "tenants: [{name: a, weight: 0}]", []string{"1: tenants[a].weight: must be at least 1, is 0"}},
		{"limits of nothing", "tenants: [{name: a, limits: {requests_per_minute: 0, max_queue_bytes: 0}}]", nil},
		{"size below nothing", "tenants: [{name: a, limits: {max_queue_bytes: -1}}]",
			[]string{"1: tenants[a].limits.max_queue_bytes: must be a size such as 512KiB, 32MiB or 1GiB, is a number"}},
	}
	order := []string{"interactive", "default", "batch"}
	for i, tenant := range order {
		for j, key := range order {
			c := ruleCase{name: key + " key of a tenant that is " + tenant,
				file: "tenants: [{name: a, priority: " + tenant + ", keys: [{hash: " + ones + ", priority: " + key + "}]}]"}
			if j < i {
				c.want = raised(tenant, key)
			}
			cases = append(cases, c)
		}
	}
	return append(cases, ruleCase{"interactive key of a tenant that says nothing",
		"tenants: [{name: a, keys: [{hash: " + ones + ", priority: interactive}]}]", raised("default", "interactive")})
}

// keyModelCases are the cases about the models of a key and those of its tenant.
func keyModelCases() []ruleCase {
	const two = sims + ", aliases: [b]}, {name: c, engine: sim, task: embedding}]\npools: [{name: p, models: [a, c]}]\n"
	return []ruleCase{
		{"models of a key that its tenant may not use", two + "tenants: [{name: t, models: [a], keys: [{hash: " + ones + "}, {hash: " + zeros + ",\n models: [c]}]}]",
			[]string{"4: tenants[t].keys[1].models: must name a model that the tenant may use: add c to models of the tenant, or name another one"}},
		{"models of a key, a pool of which its tenant has the models", two + "tenants: [{name: t, models: [a], keys: [{models: [p], hash: " + ones + "}]}]",
			[]string{"3: tenants[t].keys[0].models: must name a model that the tenant may use: add p to models of the tenant, or name another one"}},
		{"models of a key by an alias", two + "tenants: [{name: t, models: [a], keys: [{models: [b], hash: " + ones + "}]}]", nil},
		{"models of a key, one of which its tenant may use", two + "tenants: [{name: t, models: [b], keys: [{models: [c, a], hash: " + ones + "}]}]", nil},
		{"all models of its tenant", two + "tenants: [{name: t, models: [a], keys: [{models: ['*'], hash: " + ones + "}]}]", nil},
		{"models of a key whose tenant may use all", two + "tenants: [{name: t, keys: [{models: [p, c], hash: " + ones + "}]}]", nil},
		{"a key without any model", two + "tenants: [{name: t, models: [a], keys: [{models: [], hash: " + ones + "}]}]", []string{
			"3: tenants[t].keys[0].models: must name at least one model, is empty: remove the key, or remove models if it may use all of its tenant"}},
		{"models of a key whose tenant is shut out", two + "tenants: [{name: t, models: [], keys: [{models: [c], hash: " + ones + "}]}]", nil},
		{"models of a key that may be discovered", two + "upstreams: [http://h:1]\ntenants: [{name: t, models: [a], keys: [{models: [d], hash: " + ones + "}]}]", nil},
	}
}

// poolCases are the cases about pools and models with launcher none.
func poolCases() []ruleCase {
	const none = "models: [{name: a, launcher: none"
	const elsewhere = "has launcher none, so Sluice serves no request for it: name a model that Sluice serves, or leave default_model out"
	cases := []ruleCase{
		{"only admitted", none + ", aliases: [b], task: rerank, admission: {weight: 2, max_queue: 5, queue_timeout: 1s}}]", nil},
		{"R5: default model", sims + ", aliases: [b]}]\ndefault_model: b", nil},
		{"R5: default pool", none + "}, {name: c, engine: sim, task: embedding}]\npools: [{name: p, models: [a, c]}]\ndefault_model: p", nil},
		{"R5: default model that is served elsewhere", none + ", aliases: [b]}]\nupstreams: [http://h:1]\ndefault_model: b",
			[]string{"3: default_model: b " + elsewhere}},
		{"R5: default pool that is served elsewhere", none + "}]\npools: [{name: p, models: [a]}]\ndefault_model: p",
			[]string{"3: default_model: p " + elsewhere}},
		{"R5: default pool of what is discovered", none + "}]\nupstreams: [http://h:1]\npools: [{name: p, models: [a, b]}]\ndefault_model: p", nil},
		{"R5: default model to be discovered", "default_model: b\nupstreams: [http://h:1]", nil},
		{"R5: no such default model", "models: [{name: chat, launcher: none}]\ndefault_model: chad", []string{"2: default_model: there is no model chad; did you mean chat?"}},
		{"pool", sims + ", aliases: [b]}]\npools: [{name: p, models: [b]}]", nil},
		{"pool of what is discovered", "upstreams: [http://h]\npools: [{name: p, models: [b, org/c]}]", nil},
		{"pool of an adapter", sims + ", adapters: [b]}]\npools: [{name: p, models: [a, b]}]",
			[]string{"2: pools[p].models[1]: must be the name or alias of a model, and b is an adapter of a"}},
		{"pool of itself where models are discovered", "upstreams: [http://h]\npools: [{name: p, models: [p]}]",
			[]string{"2: pools[p].models[0]: must be the name or alias of a model, and p is a pool"}},
		{"pool of every model", "upstreams: [http://h]\npools: [{name: p, models: ['*', '']}]", []string{
			"2: pools[p].models[0]: must be the name or alias of a model, is *", "2: pools[p].models[1]: must be the name or alias of a model, is \"\""}},
		{"pool of no model, where the models have faults", "models: [{name: a, launcher: none}, {name: a, launcher: none}, {launcher: none}]\npools: [{name: p, models: [zz]}]",
			[]string{"1: models[2].name: required, and missing", "1: models[a].name: a is already used by models[a].name on line 1: choose another name",
				"2: pools[p].models[0]: there is no model zz; known are a"}},
		{"swapped letters", "modles: []\nmodels: [{name: a, launcher: none}]", []string{"1: modles: unknown field; did you mean models?"}},
		{"pool of no model", sims + "}]\npools: [{name: p, models: [c]}]", []string{"2: pools[p].models[0]: there is no model c; known are a"}},
		{"pool of nothing", "pools: [{name: p, models: []}]", []string{"1: pools[p].models: must name at least one model, is empty"}},
		{"pool that says nothing", "pools: [{name: p}]", []string{"1: pools[p].models: required, and missing"}},
		{"pool of a model and its alias", sims + ", aliases: [b]}]\npools:\n- name: p\n  models:\n  - a\n  - b",
			[]string{"6: pools[p].models[1]: the same model is on line 5, at pools[p].models[0]: remove one of them"}},
		{"one model in two pools", sims + "}]\npools: [{name: p, models: [a]}, {name: q, models: [a]}]", nil},
		{"pool twice", sims + "}]\npools:\n- {name: p, models: [a]}\n- {name: p, models: [a]}",
			[]string{"4: pools[p].name: p is already used by pools[p].name on line 3: choose another name"}},
		{"pool named as an alias", sims + ", aliases: [b]}]\npools: [{name: b, models: [a]}]",
			[]string{"2: pools[b].name: b is already used by models[a].aliases[0] on line 1: choose another name"}},
		{"pool without a good name", sims + "}]\npools: [{name: '*', models: [a]}]",
			[]string{"2: pools[*].name: must be a name: a letter or digit, then letters, digits and _ - . / : @ +, at most 200 characters, is *"}},
		{"tenant of a pool", "tenants: [{name: t, models: [p]}]\n" + sims + "}]\npools: [{name: p, models: [a]}]", nil},
	}
	for _, given := range []string{"engine: sim", "version: '1'", "source: {name: org/x}", "replicas: {min: 1}", "variables: {seed: 1}", "args: [-x]",
		"env: {A: b}", "upstreams: [http://h]", "routing: {strategy: round_robin}", "stream: {mode: native}", "cold_start_timeout: 1m",
		"admission: {max_per_replica: auto}", "admission: {max_prefill_per_replica: 0}"} {
		field, value, _ := strings.Cut(given, ": ")
		if field == "admission" {
			name, _, _ := strings.Cut(strings.TrimPrefix(value, "{"), ":")
			field += "." + name
		}
		cases = append(cases, ruleCase{"only admitted, with " + field, none + ", " + given + "}]",
			[]string{"1: models[a]." + field + ": has no effect with launcher: none; remove it"}})
	}
	return cases
}

// TestFaultsKeepSecrets checks that no fault shows a secret.
func TestFaultsKeepSecrets(t *testing.T) {
	t.Parallel()
	for _, r := range ruleCases() {
		if faults := strings.Join(faultsOf(t, r.file), "\n"); strings.Contains(faults, "secret") || strings.Contains(faults, "cret") {
			t.Errorf("%s: %s", r.name, faults)
		}
	}
}

// TestPoolsHaveNames checks that an alias in a pool is replaced by the name of its model.
func TestPoolsHaveNames(t *testing.T) {
	t.Parallel()
	c := parsed(t, "models: [{name: a, aliases: [b], launcher: none}, {name: c, launcher: none, aliases: [d]}]\npools: [{name: p, models: [d, b]}]")
	if diff := cmp.Diff([]Pool{{Name: "p", Models: []string{"c", "a"}}}, c.Pools); diff != "" {
		t.Error(diff)
	}
}

// TestKeysHaveAPriority checks that a key without a priority gets the priority of its tenant.
func TestKeysHaveAPriority(t *testing.T) {
	t.Parallel()
	c := parsed(t, "tenants: [{name: a, priority: batch, keys: ["+zeros+", {hash: "+ones+"}]}]")
	if diff := cmp.Diff([]Key{{Hash: zeros, Priority: Batch}, {Hash: ones, Priority: Batch}}, c.Tenants[0].Keys); diff != "" {
		t.Error(diff)
	}
}
