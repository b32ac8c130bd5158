package config

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestX12_AdminAuth(t *testing.T) {
	t.Parallel()
	const off = "admin: 0.0.0.0:9090\n"
	token := "{name: ops, role: operator, hash: " + zeros + "}"
	for _, c := range []ruleCase{
		{"off loopback", "# one\nadmin: 0.0.0.0:9090", []string{
			"2: admin: 0.0.0.0:9090 can be reached from other machines, so it needs admin_auth: make a token with `sluice admin token NAME`, or set admin: 127.0.0.1:9090"}},
		{"all addresses of IPv6", "admin: '[::]:9090'", []string{
			"1: admin: [::]:9090 can be reached from other machines, so it needs admin_auth: make a token with `sluice admin token NAME`, or set admin: 127.0.0.1:9090"}},
		{"off loopback with a token", off + "admin_auth: {tokens: [" + token + "]}", nil},
		{"off loopback with a token, and no keys", off + "listen: 127.0.0.1:1\nauth: {mode: none}\nadmin_auth: {tokens: [" + token + "]}", nil},
		{"off loopback with a header", off + "admin_auth: {trusted_header: {name: x-forwarded-user, from: [10.0.0.0/8, '::1']}}", nil},
		{"on loopback with a token", "admin_auth: {tokens: [" + token + "]}", nil},
		{"nobody", off + "admin_auth: {}", []string{"2: admin_auth: admits nobody: add tokens (`sluice admin token NAME` makes one) or trusted_header"}},
		{"no role", "admin_auth: {tokens: [{name: a, hash: " + zeros + "}]}", []string{"1: admin_auth.tokens[a].role: required, and missing"}},
		{"a token itself", "admin_auth: {tokens: [{name: a, role: viewer, hash: sk-sluice-secret}]}", []string{
			"1: admin_auth.tokens[a].hash: must be sha256: and 64 hex digits, the hash that `sluice admin token` prints, never a key itself"}},
		{"twice", "admin_auth:\n  tokens:\n  - " + token + "\n  - " + token, []string{
			"4: admin_auth.tokens[ops].hash: the same token is on line 3, at admin_auth.tokens[ops].hash: remove one of them",
			"4: admin_auth.tokens[ops].name: ops is already used by admin_auth.tokens[ops].name on line 3: choose another name"}},
		{"everybody is the proxy", "admin_auth: {trusted_header: {name: x-user, from: [0.0.0.0/0, 10.0.0.1/8, proxy, '::/0']}}", []string{
			"1: admin_auth.trusted_header.from[0]: 0.0.0.0/0 is every address, so everybody would be trusted: name fewer addresses",
			"1: admin_auth.trusted_header.from[1]: must be an IP address or a range such as 10.0.0.0/8, is 10.0.0.1/8",
			"1: admin_auth.trusted_header.from[2]: must be an IP address or a range such as 10.0.0.0/8, is proxy",
			"1: admin_auth.trusted_header.from[3]: ::/0 is every address, so everybody would be trusted: name fewer addresses"}},
		{"no proxy", "admin_auth: {trusted_header: {name: x user, from: []}}", []string{
			"1: admin_auth.trusted_header.from: must name the addresses of the proxy, is empty",
			`1: admin_auth.trusted_header.name: must be the name of a header, such as x-forwarded-user, is "x user"`}},
		{"health on all addresses", "health: 0.0.0.0:9902", nil},
		{"health is admin", "health: 0.0.0.0:9090", []string{"1: health: 0.0.0.0:9090 is also the address of another listener (127.0.0.1:9090): choose another port"}},
		{"control is health", "health: 127.0.0.1:1\ncontrol: 127.0.0.1:1", []string{
			"2: control: 127.0.0.1:1 is also the address of another listener (127.0.0.1:1): choose another port"}},
	} {
		if diff := cmp.Diff(c.want, faultsOf(t, c.file)); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
	c := parsed(t, "admin_auth: {trusted_header: {name: x-user, from: [10.0.0.0/8, 192.0.2.1]}}").AdminAuth.TrustedHeader
	want := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.0.2.1/32")}
	if c.Role != AdminViewer || !cmp.Equal(c.Proxies, want, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })) {
		t.Errorf("%+v", c)
	}
}
