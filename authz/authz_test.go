package authz_test

import (
	"context"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	auth "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/openai"
)

func policy(t *testing.T, c authz.Config) *authz.Authenticator {
	t.Helper()
	var a authz.Authenticator
	if err := a.Set(c); err != nil {
		t.Fatal(err)
	}
	return &a
}

func tenant(name string, keys ...string) authz.TenantConfig {
	c := authz.TenantConfig{Tenant: authz.Tenant{Name: name, Models: []string{"*"}}}
	for _, k := range keys {
		c.Keys = append(c.Keys, authz.KeyConfig{Hash: authz.HashKey(k)})
	}
	return c
}

func TestAuthenticate(t *testing.T) {
	a := policy(t, authz.Config{Tenants: []authz.TenantConfig{tenant("acme", "old", "new"), tenant("beta", "b")}})
	for _, c := range []struct {
		name string
		authz.Credentials
		tenant string
	}{
		{"bearer", authz.Credentials{Authorization: "Bearer new"}, "acme"},
		{"keys overlap", authz.Credentials{Authorization: "Bearer old"}, "acme"},
		{"scheme in any case", authz.Credentials{Authorization: "bearer b"}, "beta"},
		{"x-api-key", authz.Credentials{APIKey: "b"}, "beta"},
		{"authorization wins", authz.Credentials{Authorization: "Bearer b", APIKey: "new"}, "beta"},
		{"nothing", authz.Credentials{}, ""},
		{"wrong key", authz.Credentials{Authorization: "Bearer c"}, ""},
		{"other scheme", authz.Credentials{Authorization: "Basic b"}, ""},
		{"no key", authz.Credentials{Authorization: "Bearer "}, ""},
		{"the hash is no key", authz.Credentials{Authorization: "Bearer " + authz.HashKey("b")}, ""},
		{"a wrong bearer is not saved by a good x-api-key", authz.Credentials{Authorization: "Bearer c", APIKey: "b"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, fault := a.Authenticate(c.Credentials)
			if c.tenant == "" {
				if fault == nil || fault.Code != openai.CodeInvalidAPIKey || fault.HTTPStatus() != 401 {
					t.Fatalf("got %v, %v; want invalid_api_key", got, fault)
				}
				return
			}
			if fault != nil || got.Name != c.tenant {
				t.Fatalf("got %v, %v; want tenant %s", got, fault, c.tenant)
			}
		})
	}
}

func TestErrorsNeverHoldTheKey(t *testing.T) {
	a := policy(t, authz.Config{Tenants: []authz.TenantConfig{tenant("acme", "k")}})
	for _, c := range []authz.Credentials{{Authorization: "Bearer hush-hush"}, {Authorization: "hush-hush"}, {APIKey: "hush-hush"}} {
		if _, fault := a.Authenticate(c); strings.Contains(string(fault.Body()), "hush") {
			t.Errorf("the error shows the key: %s", fault.Body())
		}
	}
}

func TestNobodyIsLetInByDefault(t *testing.T) {
	for name, a := range map[string]*authz.Authenticator{"zero": {}, "no tenants": policy(t, authz.Config{})} {
		if _, fault := a.Authenticate(authz.Credentials{Authorization: "Bearer x"}); fault == nil {
			t.Errorf("%s: the caller was authenticated", name)
		}
	}
}

func TestOpen(t *testing.T) {
	got, fault := policy(t, authz.Config{Open: true}).Authenticate(authz.Credentials{})
	if fault != nil || got.Name != authz.Anyone || !got.Allows("x") {
		t.Fatalf("got %v, %v", got, fault)
	}
}

func TestAllows(t *testing.T) {
	some := authz.Tenant{Models: []string{"a", "b"}}
	if !some.Allows("a") || some.Allows("c") || some.Allows("*") {
		t.Error("a tenant with a list must be allowed the models of the list and no other")
	}
}

func TestAFaultyPolicyChangesNothing(t *testing.T) {
	a := policy(t, authz.Config{Tenants: []authz.TenantConfig{tenant("acme", "k")}})
	for name, c := range map[string]authz.Config{
		"not a hash":  {Tenants: []authz.TenantConfig{{Keys: []authz.KeyConfig{{Hash: "k"}}}}},
		"short hash":  {Tenants: []authz.TenantConfig{{Keys: []authz.KeyConfig{{Hash: "sha256:00"}}}}},
		"shared key":  {Tenants: []authz.TenantConfig{tenant("x", "s"), tenant("y", "s")}},
		"not hex":     {Tenants: []authz.TenantConfig{{Keys: []authz.KeyConfig{{Hash: "sha256:" + strings.Repeat("z", 64)}}}}},
		"other digit": {Tenants: []authz.TenantConfig{{Keys: []authz.KeyConfig{{Hash: "md5:" + strings.Repeat("0", 64)}}}}},
	} {
		if a.Set(c) == nil {
			t.Errorf("%s: the policy was accepted", name)
		}
	}
	if _, fault := a.Authenticate(authz.Credentials{APIKey: "k"}); fault != nil {
		t.Error("the policy before was lost")
	}
}

func TestNewKey(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		k := authz.NewKey()
		if seen[k.Secret] || !hasChecksum(k.Secret) || k.Hash != authz.HashKey(k.Secret) || !strings.Contains(k.Secret, k.ID) {
			t.Fatalf("the key with id %s is malformed or not new", k.ID)
		}
		seen[k.Secret] = true
		truncated := k.Secret[:len(k.Secret)-1]
		mistyped := []byte(k.Secret)
		mistyped[20] ^= 3
		for _, wrong := range []string{"", "sk-sluice-", truncated, string(mistyped)} {
			if hasChecksum(wrong) {
				t.Fatalf("%q passes for a key", wrong)
			}
		}
	}
}

// A refused key says what is wrong with its text, as far as the text alone shows that.
func TestAWrongKeySaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	a := policy(t, authz.Config{Tenants: []authz.TenantConfig{tenant("acme", "k")}})
	k := authz.NewKey()
	for text, want := range map[string]string{
		"sk-of-another-service":             "Incorrect API key provided.",
		k.Secret:                            "Incorrect API key provided. It was revoked, its hash is not in the file of this gateway, or another gateway has made it.",
		k.Secret[:len(k.Secret)-1]:          "Incorrect API key provided. It is cut or mistyped, or something stands before or behind it: copy it again.",
		`"` + k.Secret + `"`:                "Incorrect API key provided. It is cut or mistyped, or something stands before or behind it: copy it again.",
		k.Secret[:20] + " " + k.Secret[20:]: "Incorrect API key provided. It is cut or mistyped, or something stands before or behind it: copy it again.",
		"sk-sluice-":                        "Incorrect API key provided. It is cut or mistyped, or something stands before or behind it: copy it again.",
		k.Hash:                              "Incorrect API key provided. It is the hash of a key: send the key itself.",
	} {
		if _, fault := a.Authenticate(authz.Credentials{Authorization: "Bearer " + text}); fault == nil || fault.Message != want || fault.Code != openai.CodeInvalidAPIKey {
			t.Errorf("%.12s… is answered with %v, want %q", text, fault, want)
		}
	}
}

// hasChecksum reports whether the text begins as a key does and ends with the CRC-32 of what comes
// before it. A secret scanner can check a key in this way.
func hasChecksum(secret string) bool {
	const prefix, sumChars = "sk-sluice-", 7
	if !strings.HasPrefix(secret, prefix) || len(secret) <= len(prefix)+sumChars {
		return false
	}
	text, sum := secret[:len(secret)-sumChars], secret[len(secret)-sumChars:]
	crc := binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(text)))
	return sum == strings.TrimRight(strings.ToLower(base32.StdEncoding.EncodeToString(crc)), "=")
}

func TestCheck(t *testing.T) {
	s := authz.Server{Authenticator: policy(t, authz.Config{Tenants: []authz.TenantConfig{tenant("acme", "k")}})}
	check := func(h map[string]string) *auth.CheckResponse {
		r, err := s.Check(context.Background(), &auth.CheckRequest{Attributes: &auth.AttributeContext{
			Request: &auth.AttributeContext_Request{Http: &auth.AttributeContext_HttpRequest{Headers: h}}}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	ok := check(map[string]string{"authorization": "Bearer k"}).GetOkResponse()
	if h := ok.GetHeaders(); len(h) != 3 || h[0].GetHeader().GetValue() != "acme" || h[1].GetHeader().GetValue() != "default" ||
		"sha256:"+h[2].GetHeader().GetValue() != authz.HashKey("k") || !s.Authenticator.Watch("acme", h[2].GetHeader().GetValue())() {
		t.Errorf("headers upstream: %v", h)
	}
	for _, wrong := range [][2]string{{"rival", strings.TrimPrefix(authz.HashKey("k"), "sha256:")}, {"acme", strings.TrimPrefix(authz.HashKey("other"), "sha256:")}, {"acme", "zz"}, {"acme", ""}} {
		if s.Authenticator.Watch(wrong[0], wrong[1])() {
			t.Errorf("the credentials %v are valid", wrong)
		}
	}
	if fmt.Sprint(ok.GetHeadersToRemove()) != "[authorization x-api-key api-key]" {
		t.Errorf("the credentials go on to the upstream: %v", ok.GetHeadersToRemove())
	}
	refused := check(nil)
	if code := refused.GetDynamicMetadata().GetFields()["code"].GetStringValue(); code != "invalid_api_key" {
		t.Errorf("the access log gets the code %q", code)
	}
	no := refused.GetDeniedResponse()
	if no.GetStatus().GetCode() != 401 || !strings.Contains(no.GetBody(), `"code":"invalid_api_key"`) {
		t.Errorf("refused with %v", no)
	}
	if !slices.ContainsFunc(no.GetHeaders(), func(h *core.HeaderValueOption) bool {
		return h.GetHeader().GetKey() == "x-should-retry" && (h.GetHeader().GetValue() == "false" || string(h.GetHeader().GetRawValue()) == "false")
	}) {
		t.Errorf("clients may repeat the request: %v", no.GetHeaders())
	}
}

func TestPriorityCanOnlyBeLowered(t *testing.T) {
	for _, c := range []struct{ own, asked, want string }{
		{"", "", "default"}, {"", "interactive", "default"}, {"", "batch", "batch"},
		{"interactive", "", "interactive"}, {"interactive", "default", "default"}, {"interactive", "interactive", "interactive"},
		{"batch", "interactive", "batch"}, {"batch", "", "batch"},
		{"default", "Batch", ""}, {"default", "batch,batch", ""},
	} {
		got, fault := (&authz.Tenant{Priority: c.own}).PriorityOf(c.asked)
		if got != c.want || (fault == nil) != (c.want != "") {
			t.Errorf("%q asks for %q: %q, %v; want %q", c.own, c.asked, got, fault, c.want)
		}
	}
}

func TestAKeyMayHaveAPriorityOfItsOwn(t *testing.T) {
	people := tenant("acme", "day", "night")
	people.Priority, people.Keys[1].Priority = authz.Interactive, authz.Batch
	a := policy(t, authz.Config{Tenants: []authz.TenantConfig{people}})
	for key, want := range map[string]string{"day": authz.Interactive, "night": authz.Batch} {
		if got, fault := a.Authenticate(authz.Credentials{APIKey: key}); fault != nil || got.Name != "acme" || got.Priority != want {
			t.Errorf("%s: %+v, %v", key, got, fault)
		}
	}
	if got, _ := a.Tenant("acme"); got.Priority != authz.Interactive {
		t.Errorf("by name: %+v", got)
	}
	s := &authz.Server{Authenticator: a}
	for _, c := range []struct {
		key, asked, want string
	}{{"day", "", "interactive"}, {"day", "default", "default"}, {"night", "interactive", "batch"}} {
		answer, err := s.Check(context.Background(), &auth.CheckRequest{Attributes: &auth.AttributeContext{Request: &auth.AttributeContext_Request{
			Http: &auth.AttributeContext_HttpRequest{Headers: map[string]string{"x-api-key": c.key, "x-sluice-priority": c.asked}}}}})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, h := range answer.GetOkResponse().GetHeaders() {
			if h.GetHeader().GetKey() == "x-sluice-priority" {
				got = h.GetHeader().GetValue()
			}
		}
		if got != c.want {
			t.Errorf("%s asks for %q: %q", c.key, c.asked, got)
		}
	}
}
