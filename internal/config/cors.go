package config

import (
	"regexp"
	"strings"
)

// CORS says which pages of other origins may call the API from a browser.
type CORS struct {
	// Origins are the origins of the pages, as browsers send them: https://app.example.com, or
	// http://localhost:5173. In https://*.example.com the asterisk stands for one or more labels.
	// The text * alone lets every page call, and needs auth.mode keys or jwt. Default: empty, pages
	// of other origins cannot call.
	Origins []string `yaml:"origins" form:"origin"`
}

// anyOrigin is the text that stands for all origins.
const anyOrigin = "*"

// origin matches what a browser sends as the origin of a page, with an asterisk for labels.
var origin = regexp.MustCompile(`^[a-z][a-z0-9+.-]*://(\*\.)?([a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:]+\])(:[1-9][0-9]{0,4})?$`)

// Allows reports whether pages of this origin may call.
func (c CORS) Allows(page string) bool {
	for _, allowed := range c.Origins {
		before, after, wild := strings.Cut(allowed, "*")
		if allowed == page || allowed == anyOrigin {
			return true
		}
		rest, begins := strings.CutPrefix(page, before)
		labels, ends := strings.CutSuffix(rest, after)
		if wild && begins && ends && labels != "" && strings.Trim(labels, "abcdefghijklmnopqrstuvwxyz0123456789._-") == "" {
			return true
		}
	}
	return false
}

// checkCORS checks the origins of pages.
func (k *checker) checkCORS() {
	at := path{"cors", "origins"}
	var all []named
	for i, text := range k.config.CORS.Origins {
		where := at.item(i)
		all = append(all, named{text, where})
		scheme, _, _ := strings.Cut(text, "://")
		switch {
		case !k.valid(where):
		case text == anyOrigin && k.config.Auth.ByPlace():
			k.faultf(where, "lets every page that a caller opens call without a key, because auth.mode is %s: name the origins", k.config.Auth.Mode)
		case text == anyOrigin:
		case !origin.MatchString(text):
			k.faultf(where, "must be the origin of a page as browsers send it, in lower case and without a path: https://app.example.com, is %s",
				quoted(text))
		case scheme == "https" && strings.HasSuffix(text, ":443"), scheme == "http" && strings.HasSuffix(text, ":80"):
			k.faultf(where, "has the default port of %s, which browsers leave out: remove it", scheme)
		}
	}
	k.checkRepeated(all, "origin")
}
