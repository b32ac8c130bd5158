package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/admission/redis"
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/keys"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/usage"
)

// keyKeeper keeps the keys of run time, and puts them in force.
type keyKeeper struct {
	*keys.Store
	gateway *Gateway
	// close closes the connection to Redis; nil: there is none.
	close func() error

	mu sync.Mutex
	// made are the keys as the Store last told them. Guarded by mu.
	made []keys.Key
	// restoredAt is when this gateway last wrote keys again that Redis had lost, and restoredCount
	// how many there were. Guarded by mu.
	restoredAt    time.Time
	restoredCount int
}

// makeKeys makes the store of keys: in Redis if the configuration names one, else in the state
// directory.
func (g *Gateway) makeKeys() error {
	k := &keyKeeper{gateway: g}
	g.keys = k
	backend := keys.File(filepath.Join(g.dir.Path(), "keys.json"))
	if g.redis != nil {
		client, err := redis.NewClient(*g.redis, g.options.Config.RedisTimeout)
		if err != nil {
			return err
		}
		backend, k.close = keys.Redis(client, k.restored), client.Close
	}
	g.auth.SetUnread(true)
	k.Store = keys.New(keys.Config{Backend: backend, Apply: k.changed, Used: g.auth.LastUsed, Log: g.log})
	return nil
}

// changed puts the keys in force that the Store tells.
func (k *keyKeeper) changed(made []keys.Key) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.made = made
	k.applyLocked()
	k.gateway.auth.SetUnread(false)
}

// restored records that Redis had lost changes of the keys, which this gateway has written again.
func (k *keyKeeper) restored(count int) {
	k.gateway.log.Error("keys of run time written to Redis again, which had lost changes of them", zap.Int("keys", count))
	k.mu.Lock()
	defer k.mu.Unlock()
	k.restoredAt, k.restoredCount = time.Now(), count
}

// restoredShown is how long the condition RedisLostData stands after the keys were written again.
const restoredShown = time.Hour

// conditions tells whether the keys can be read, and whether Redis has lost some.
func (k *keyKeeper) conditions() (all []condition.Condition) {
	k.mu.Lock()
	at, count := k.restoredAt, k.restoredCount
	k.mu.Unlock()
	if time.Since(at) < restoredShown {
		all = append(all, condition.Fault(condition.RedisLostData, "", "KeysRestored",
			fmt.Sprintf("Redis had lost changes of the keys of run time. At %s this gateway wrote them again as it knew them, %d in all.",
				at.UTC().Format(time.RFC3339), count)))
	}
	read, err := k.Fault()
	var damaged *keys.Damaged
	switch {
	case err == nil:
		return all
	case errors.As(err, &damaged):
		return append(all, condition.Fault(condition.KeysDamaged, "", "NotReadable", fmt.Sprintf("These keys of run time are %s.", err)))
	case read:
		return append(all, keysNotRead(err, "Those of before stay in force."))
	}
	return append(all, keysNotRead(err, "Callers with such keys get 503."))
}

// keysNotRead is the condition that no key can be read.
func keysNotRead(err error, effect string) condition.Condition {
	c := condition.Fault(condition.KeysUnavailable, "", "NotRead",
		fmt.Sprintf("The keys of run time cannot be read: %s. %s", sentence(err.Error()), effect))
	c.Action = redis.Remedy(err.Error())
	return c
}

// firstRead is how long a start waits for the keys of run time.
const firstRead = 2 * time.Second

// readFirst reads the keys before the first request comes. If it fails, run reads them later.
func (k *keyKeeper) readFirst(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, firstRead)
	defer cancel()
	_ = k.Read(ctx) // the Store logs why
}

// apply puts the keys in force under the configuration in force, which says what aliases mean.
func (k *keyKeeper) apply() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.applyLocked()
}

// applyLocked is apply for a caller that holds mu. The limits and budgets of a key are in force
// before the key is.
func (k *keyKeeper) applyLocked() {
	k.gateway.limits.setKeys(runtimeKeyLimits(k.made))
	k.gateway.usage.SetBudgets(spendingBudgets(k.gateway.config(), k.made))
	k.gateway.auth.SetKeys(runtimeKeys(k.gateway.config(), k.made))
}

// run follows the changes of other gateways until ctx ends.
func (k *keyKeeper) run(ctx context.Context) error {
	err := k.Run(ctx)
	if k.close != nil {
		err = errors.Join(err, k.close())
	}
	return err
}

// keyAdmin is the admin API's view of the keys.
type keyAdmin struct{ g *Gateway }

// List implements admin.Keys.
func (a keyAdmin) List(ctx context.Context) (list []admin.Key, fault string) {
	list = []admin.Key{}
	for _, t := range a.g.config().Tenants {
		for _, k := range t.Keys {
			list = append(list, a.fileKey(t, k))
		}
	}
	for _, k := range a.g.keys.Store.List() {
		list = append(list, a.runtimeKey(k))
	}
	a.showBudgets(list)
	used := a.g.keys.LastUsed(ctx)
	for i := range list {
		if at, ok := used[list[i].UsageKey]; ok {
			list[i].LastUsed = &at
		}
	}
	_, err := a.g.keys.Fault()
	var damaged *keys.Damaged
	switch {
	case errors.As(err, &damaged):
		fault = fmt.Sprintf("Some keys of run time are %s.", err)
	case err != nil:
		fault = fmt.Sprintf("The keys of run time cannot be read: %s.", sentence(err.Error()))
	}
	return list, fault
}

// showBudgets sets how far the budgets of keys are used.
func (a keyAdmin) showBudgets(list []admin.Key) {
	uses := keyBudgetUses(a.g.usage.Standings())
	for i := range list {
		list[i].Budgets = append([]admin.BudgetUse{}, uses[list[i].UsageKey]...) // not null in the answer
	}
}

// fileKey returns a key of the file as the API shows it.
func (a keyAdmin) fileKey(t config.Tenant, k config.Key) admin.Key {
	id := authz.FileKeyID(k.Hash)
	v := admin.Key{ID: id, UsageKey: authz.KeyName(t.Name, id), Tenant: t.Name, Name: k.Name, Models: shownModels(k.Models, t),
		Limits: shownLimits(keys.Limits(k.Limits)), Quota: a.quota(t.Name, id, keys.Limits(k.Limits)), Source: admin.KeyOfFile}
	if !k.Expires.IsZero() {
		v.Expires = &k.Expires
	}
	return v
}

// runtimeKey returns a key of run time as the API shows it.
func (a keyAdmin) runtimeKey(k keys.Key) admin.Key {
	v := admin.Key{ID: k.ID, UsageKey: authz.KeyName(k.Tenant, k.ID), Tenant: k.Tenant, Name: k.Name, Prefix: authz.KeyPrefix(k.ID),
		Created: &k.Created, Models: []string{},
		Limits: shownLimits(k.Limits), Quota: a.quota(k.Tenant, k.ID, k.Limits), Source: admin.KeyOfRuntime}
	if !k.Expires.IsZero() {
		v.Expires = &k.Expires
	}
	if t, ok := a.g.config().Tenant(k.Tenant); ok {
		v.Models = shownModels(k.Models, t)
	}
	return v
}

// shownLimits returns the limits of a key as the API shows them.
func shownLimits(l keys.Limits) map[string]int {
	all := map[string]int{}
	for name, value := range map[string]int{"requests_per_minute": l.RequestsPerMinute, "tokens_per_minute": l.TokensPerMinute,
		"max_concurrent_streams": l.MaxConcurrentStreams} {
		if value > 0 {
			all[name] = value
		}
	}
	return all
}

// quota returns how much of each limit of a key is used.
func (a keyAdmin) quota(tenant, id string, l keys.Limits) map[string]admin.LimitUse {
	if l == (keys.Limits{}) {
		return map[string]admin.LimitUse{}
	}
	return tenantQuota(keyLimits(l), a.g.admission.Tenant(keyTenant(tenant, id)))
}

// shownModels returns the models of a key: its own, or those of its tenant.
func shownModels(own []string, t config.Tenant) []string {
	if len(own) > 0 {
		return own
	}
	return t.Models
}

// New implements admin.Keys.
func (a keyAdmin) New(ctx context.Context, asked admin.NewKey) (admin.Key, string, *openai.Error) {
	c, now := a.g.config(), time.Now().UTC().Truncate(time.Second)
	invalid := func(param, message string) (admin.Key, string, *openai.Error) {
		return admin.Key{}, "", &openai.Error{Code: openai.CodeInvalidRequest, Param: param, Message: message}
	}
	_, known := c.Tenant(asked.Tenant)
	switch {
	case c.Auth.Mode != config.AuthKeys:
		return admin.Key{}, "", conflict("auth.mode is %s, so no key is looked at.", c.Auth.Mode)
	case !known:
		return invalid("tenant", fmt.Sprintf("The file has no tenant %q: use the name of one of its tenants, or put the tenant into the file. "+
			"`sluice keys new --tenant %s --print` prints its lines.", asked.Tenant, asked.Tenant))
	case !config.ValidKeyName(asked.Name):
		return invalid("name", "name must be at most 100 bytes and not begin with sk-, as a key does.")
	case asked.Expires != nil && !asked.Expires.After(now):
		return invalid("expires", "expires must be in the future.")
	}
	if wrong := wrongModel(c, asked); wrong != "" {
		return invalid("models", wrong)
	}
	if wrong := wrongLimit(asked.Limits); wrong != "" {
		return invalid(wrong, wrong+" must be a whole number between 0, which is no limit, and the largest one of a tenant.")
	}
	budgets, wrong := newBudgets(c, asked)
	if wrong != "" {
		return invalid("budgets", wrong)
	}
	made := a.freshKey()
	k := keys.Key{ID: made.ID, Hash: made.Hash, Tenant: asked.Tenant, Name: asked.Name, Models: asked.Models,
		Limits: keys.Limits(asked.Limits), Budgets: budgets, Created: now}
	if asked.Expires != nil {
		k.Expires = asked.Expires.UTC()
	}
	if err := a.g.keys.Add(ctx, k); err != nil {
		return admin.Key{}, "", keysFault(err)
	}
	shown := []admin.Key{a.runtimeKey(k)}
	a.showBudgets(shown)
	return shown[0], made.Secret, nil
}

// maxKeyModels is the largest number of models that a key may name.
const maxKeyModels = 100

// wrongModel says what is wrong with the models of a new key; empty: nothing. Every name is fine
// where models are discovered, because they are not known yet.
func wrongModel(c *config.Config, asked admin.NewKey) string {
	if asked.Models != nil && len(asked.Models) == 0 {
		return "models must name at least one model, and is empty: leave it out if the key may use all of its tenant."
	}
	if len(asked.Models) > maxKeyModels {
		return fmt.Sprintf("models must not be more than %d names.", maxKeyModels)
	}
	tenant, _ := c.Tenant(asked.Tenant)
	for _, name := range asked.Models {
		switch known := c.HasModel(name); {
		case name == "*":
		case !known && !engines.ValidName(name):
			return fmt.Sprintf("models has the name %q: a name is %s.", name, engines.NameRule)
		case c.DiscoversModels():
		case !known:
			return fmt.Sprintf("There is no model or pool %q. `sluice models` lists the models.", name)
		case !c.MayUse(tenant.Models, name):
			return fmt.Sprintf("The tenant %s may not use %q, so its key may not either: add it to models of the tenant in the file.", asked.Tenant, name)
		}
	}
	return ""
}

// wrongLimit returns the name of a limit of a new key that is out of its bounds; empty: none is.
func wrongLimit(asked admin.KeyLimits) string {
	l := keyLimits(keys.Limits(asked))
	for _, row := range admission.LimitTable(admission.TenantScope) {
		if value := row.OfTenant(&l); value < 0 || row.Patchable && value > row.Max {
			return row.Name
		}
	}
	return ""
}

// newBudgets returns the budgets of a new key, or says what is wrong with them.
func newBudgets(c *config.Config, asked admin.NewKey) (all []keys.Budget, wrong string) {
	tenant, _ := c.Tenant(asked.Tenant)
	for i, b := range asked.Budgets {
		b.Of = cmp.Or(b.Of, string(usage.OfTokens))
		switch {
		case b.Per != string(usage.PerDay) && b.Per != string(usage.PerMonth):
			return nil, fmt.Sprintf("budgets[%d].per must be day or month.", i)
		case b.Of != string(usage.OfTokens) && b.Of != string(usage.OfCost):
			return nil, fmt.Sprintf("budgets[%d].of must be tokens or cost.", i)
		case b.Soft < 0 || b.Hard < 0:
			return nil, fmt.Sprintf("budgets[%d] must not be below 0.", i)
		case slices.ContainsFunc(all, func(o keys.Budget) bool { return o.Per == b.Per && o.Of == b.Of }):
			return nil, fmt.Sprintf("budgets has two of %s per %s: give one of them both soft and hard.", b.Of, b.Per)
		}
		if field, message := c.WrongBudget(config.Budget(b), tenant.Models, asked.Models); message != "" {
			return nil, strings.TrimSuffix(fmt.Sprintf("budgets[%d].%s", i, field), ".") + " " + message + "."
		}
		all = append(all, keys.Budget(b))
	}
	return all, ""
}

// freshKey makes a key with an id that no other key has.
func (a keyAdmin) freshKey() authz.Key {
	all := a.g.keys.Store.List()
	for {
		made := authz.NewKey()
		if !slices.ContainsFunc(all, func(k keys.Key) bool { return k.ID == made.ID }) {
			return made
		}
	}
}

// Revoke implements admin.Keys.
func (a keyAdmin) Revoke(ctx context.Context, id string) (admin.Key, *openai.Error) {
	all, fault := a.List(ctx)
	for _, k := range all {
		if k.ID == id || k.UsageKey == id {
			return a.revoke(ctx, k)
		}
	}
	if fault != "" { // the store may have it all the same
		switch found, err := a.g.keys.Remove(ctx, id); {
		case found:
			return admin.Key{ID: id, Models: []string{}, Source: admin.KeyOfRuntime}, nil
		case err != nil:
			return admin.Key{}, openai.Errorf(openai.CodeGatewayUnavailable, "%s No key with this id is known.", fault)
		}
	}
	return admin.Key{}, notFound("There is no key with this id. `sluice keys list` lists the keys.")
}

// revoke ends a key of the list.
func (a keyAdmin) revoke(ctx context.Context, k admin.Key) (admin.Key, *openai.Error) {
	if k.Source == admin.KeyOfFile {
		return k, conflict("The key %s is a key of the file, which cannot be revoked at run time: remove its hash from the tenant %s in the file.",
			k.ID, k.Tenant)
	}
	found, err := a.g.keys.Remove(ctx, k.ID)
	switch {
	case err != nil:
		return k, keysFault(err)
	case !found:
		return k, notFound("The key was revoked already.")
	}
	return k, nil
}

// keysFault is the error of a store that does not work, or is full.
func keysFault(err error) *openai.Error {
	if errors.Is(err, keys.ErrFull) {
		return conflict("The gateway has %d keys already: revoke those that are not used.", keys.MaxKeys)
	}
	return openai.Errorf(openai.CodeGatewayUnavailable, "The keys cannot be stored at the moment: %s.", sentence(err.Error()))
}
