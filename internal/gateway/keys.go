package gateway

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"github.com/sluice-gateway/sluice/admission/redis"
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/keys"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// keyKeeper keeps the keys of run time. close closes the connection to Redis; nil: there is none.
type keyKeeper struct {
	*keys.Store
	close func() error
}

// makeKeys makes the store of keys: in Redis if the configuration names one, else in the state
// directory.
func (g *Gateway) makeKeys() error {
	g.keys = &keyKeeper{}
	backend := keys.File(filepath.Join(g.dir.Path(), "keys.json"))
	if url := g.options.Config.Redis; url != "" {
		client, err := redis.NewClient(url, 0)
		if err != nil {
			return err
		}
		backend, g.keys.close = keys.Redis(client), client.Close
	}
	g.keys.Store = keys.New(backend, func(all []keys.Key) {
		var now []authz.RuntimeKey
		for _, k := range all {
			now = append(now, authz.RuntimeKey{Hash: k.Hash, Tenant: k.Tenant, Expires: k.Expires})
		}
		g.auth.SetKeys(now)
	}, g.log)
	return nil
}

// run follows the changes of other gateways until ctx ends.
func (k *keyKeeper) run(ctx context.Context) error {
	err := k.Run(ctx)
	if k.close != nil {
		err = errors.Join(err, k.close())
	}
	return err
}

// maxKeyName is the length of the longest name of a key, in bytes.
const maxKeyName = 100

// keyAdmin is the admin API's view of the keys.
type keyAdmin struct{ g *Gateway }

// List implements admin.Keys.
func (a keyAdmin) List() []admin.Key {
	list := []admin.Key{}
	for _, t := range a.g.config().Tenants {
		for range t.Keys {
			list = append(list, admin.Key{Tenant: t.Name, Models: t.Models, Source: "file"})
		}
	}
	for _, k := range a.g.keys.Store.List() {
		list = append(list, a.view(k))
	}
	return list
}

// view returns a key of run time as the API shows it.
func (a keyAdmin) view(k keys.Key) admin.Key {
	v := admin.Key{ID: k.ID, Tenant: k.Tenant, Name: k.Name, Prefix: authz.KeyPrefix(k.ID), Created: &k.Created, Models: []string{}, Source: "runtime"}
	if !k.Expires.IsZero() {
		v.Expires = &k.Expires
	}
	if t, ok := a.g.auth.Tenant(k.Tenant); ok {
		v.Models = t.Models
	}
	return v
}

// New implements admin.Keys.
func (a keyAdmin) New(ctx context.Context, asked admin.NewKey) (admin.Key, string, *openai.Error) {
	c, now := a.g.config(), time.Now().UTC().Truncate(time.Second)
	invalid := func(param, message string) (admin.Key, string, *openai.Error) {
		return admin.Key{}, "", &openai.Error{Code: openai.CodeInvalidRequest, Param: param, Message: message}
	}
	switch {
	case c.Auth.Mode != config.AuthKeys:
		return admin.Key{}, "", &openai.Error{Code: openai.CodeInvalidRequest, Status: http.StatusConflict,
			Message: "auth.mode is " + string(c.Auth.Mode) + ", so no key is looked at."}
	case !slices.ContainsFunc(c.Tenants, func(t config.Tenant) bool { return t.Name == asked.Tenant }):
		return invalid("tenant", "tenant must be the name of a tenant of the file.")
	case len(asked.Name) > maxKeyName:
		return invalid("name", "name must not be longer than 100 bytes.")
	case asked.Expires != nil && !asked.Expires.After(now):
		return invalid("expires", "expires must be in the future.")
	}
	made := authz.NewKey()
	k := keys.Key{ID: made.ID, Hash: made.Hash, Tenant: asked.Tenant, Name: asked.Name, Created: now}
	if asked.Expires != nil {
		k.Expires = asked.Expires.UTC()
	}
	if err := a.g.keys.Add(ctx, k); err != nil {
		return admin.Key{}, "", keysFault(err)
	}
	return a.view(k), made.Secret, nil
}

// Revoke implements admin.Keys.
func (a keyAdmin) Revoke(ctx context.Context, id string) (admin.Key, *openai.Error) {
	var was admin.Key
	for _, k := range a.g.keys.Store.List() {
		if k.ID == id {
			was = a.view(k)
		}
	}
	found, err := a.g.keys.Remove(ctx, id)
	switch {
	case err != nil:
		return was, keysFault(err)
	case !found:
		return was, &openai.Error{Code: openai.CodeInvalidRequest, Status: http.StatusNotFound,
			Message: "No key of run time has this id. A key of the file is removed from the file."}
	}
	return was, nil
}

// keysFault is the error of a store that does not work, or is full.
func keysFault(err error) *openai.Error {
	if errors.Is(err, keys.ErrFull) {
		return &openai.Error{Code: openai.CodeInvalidRequest, Status: http.StatusConflict, Message: "The gateway has 10000 keys already: revoke those that are not used."}
	}
	return openai.Errorf(openai.CodeGatewayUnavailable, "The keys cannot be stored at the moment: %v.", err)
}
