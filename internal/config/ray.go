package config

import (
	"net/url"
	"strconv"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
)

// Ray says which Ray cluster runs the models with launcher ray.
type Ray struct {
	// Address is the URL of the dashboard of the cluster's head, such as http://10.0.0.1:8265.
	Address string `yaml:"address" required:"true" form:"base_url"`
	// TokenEnv is the name of the environment variable that holds the token of a cluster with token
	// authentication (RAY_AUTH_MODE=token). Default: empty, no token is sent.
	TokenEnv string `yaml:"token_env" form:"variable"`
	// Name is the name of this installation. Installations that share a cluster have different
	// names, and each leaves the jobs of the others alone. Gateways with the same name, address and
	// redis share the jobs, and one of them starts and stops them. At most 63 characters. Default
	// sluice.
	Name string `yaml:"name" default:"sluice" form:"label"`
	// Ports is the range of the TCP ports that replicas listen on, on all addresses of their nodes.
	// No two replicas of the installation have the same port. Ray itself uses 10002-19999 unless it
	// is told otherwise. Default 21000-21999.
	Ports string `yaml:"ports" default:"21000-21999" form:"ports"`

	// FirstPort and LastPort are Ports as numbers.
	FirstPort, LastPort int `yaml:"-"`
	// Token is the value of TokenEnv. It is a secret.
	Token string `yaml:"-"`
}

// checkRay checks the section ray and reads its token.
func (k *checker) checkRay() {
	section, at := k.config.Ray, path{"ray"}
	if section == nil {
		return
	}
	if where := at.field("address"); k.valid(where) && !isDashboardURL(section.Address) {
		k.faultf(where, "must be the URL of Ray's dashboard, such as http://10.0.0.1:8265, is %s", quoted(section.Address))
	}
	if where := at.field("name"); k.valid(where) && !label.MatchString(section.Name) {
		k.faultf(where, "must be lower case letters, digits and -, at most 63 characters, is %s", quoted(section.Name))
	}
	var ok bool
	if section.FirstPort, section.LastPort, ok = portRange(section.Ports); !ok && k.valid(at.field("ports")) {
		k.faultf(at.field("ports"), "must be a range of TCP ports from 1024 to 65535, such as 21000-21999, is %s", quoted(section.Ports))
	}
	if where := at.field("token_env"); section.TokenEnv != "" && k.valid(where) {
		token, fault := environmentVariable(section.TokenEnv)
		if section.Token = token; fault != "" {
			k.faultf(where, "%s", fault)
		}
	}
}

// isDashboardURL reports whether text is an http or https URL of a host, and nothing more.
func isDashboardURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && u.User == nil &&
		strings.Trim(u.Path, "/") == "" && u.RawQuery == "" && u.Fragment == ""
}

// portRange reads a range such as 21000-21999. Both ends belong to it.
func portRange(text string) (first, last int, ok bool) {
	low, high, found := strings.Cut(text, "-")
	first, errFirst := strconv.Atoi(strings.TrimSpace(low))
	last, errLast := strconv.Atoi(strings.TrimSpace(high))
	return first, last, found && errFirst == nil && errLast == nil && first >= 1024 && first <= last && last <= 65535
}

func (k *checker) checkRayModel(at path, m *Model) {
	if k.config.Ray == nil {
		k.faultf(at.field("launcher"), "ray needs the section ray at the top of the file, such as ray: {address: http://10.0.0.1:8265}")
	}
	k.rejectSet(at.field("placement"), "launcher: ray, because Ray picks the node")
	for _, field := range []string{"env_from", "secrets"} {
		k.rejectSet(at.field(field), "launcher: ray, because everybody who reaches Ray's dashboard can read the environment of its jobs; "+
			"set credentials in the environment of ray start on the nodes")
	}
	for _, field := range refusedFields(engines.Ray) {
		k.rejectSet(at.field(field), "launcher: ray")
	}
	if where := at.field("cluster"); m.Cluster != "" && k.valid(where) && !engines.ValidName(m.Cluster) {
		k.faultf(where, "must be the name of a custom resource of Ray's nodes: %s, is %s", engines.NameRule, quoted(m.Cluster))
	}
	k.checkLaunchedModel(at, m)
}
