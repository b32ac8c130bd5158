package engines

import (
	"slices"
	"strconv"
	"strings"
)

// Resolve returns the table for a release of an engine. It is the version of that very name, or the
// newest one at or below the release. So 0.11.2 has the flags of 0.11. An empty release means the
// last version. The second result is false if all versions are newer, or if the release has no
// number to compare.
//
// The image of the result holds the release itself when its table tells where; see
// Version.Release.
func (e Engine) Resolve(release string) (Version, bool) {
	if len(e.Versions) == 0 {
		return Version{}, false
	}
	if release == "" {
		return e.Versions[len(e.Versions)-1], true
	}
	if i := slices.IndexFunc(e.Versions, func(v Version) bool { return v.Version == release }); i >= 0 {
		return e.Versions[i], true
	}
	kind, asked := splitRelease(release)
	found := -1
	var newest []int
	for i := range e.Versions {
		k, numbers := splitRelease(e.Versions[i].Version)
		if k == kind && numbers != nil && slices.Compare(numbers, asked) <= 0 && slices.Compare(numbers, newest) >= 0 {
			found, newest = i, numbers
		}
	}
	if found < 0 {
		return Version{}, false
	}
	return e.Versions[found].withImageOf(release), true
}

// withImageOf returns the version with the image of a release. A release that is less exact than
// the table's own changes nothing: 0.34 does not name an image.
func (v Version) withImageOf(release string) Version {
	exact := func(s string) int { return strings.Count(s, ".") }
	if v.Release != "" && exact(release) >= exact(v.Release) {
		v.Image = strings.Replace(v.Image, v.Release, strings.TrimPrefix(release, "v"), 1)
	}
	return v
}

// splitRelease splits a release into what precedes its first digit, such as "python-", and its
// numbers. A leading v counts for nothing. Numbers end at the first part that is none: 0.9.0-rc.3
// is 0.9.0. They are nil if there is none.
func splitRelease(release string) (kind string, numbers []int) {
	release = strings.TrimPrefix(release, "v")
	digit := strings.IndexAny(release, "0123456789")
	if digit < 0 {
		return release, nil
	}
	kind = release[:digit]
	for part := range strings.SplitSeq(release[digit:], ".") {
		end := strings.IndexFunc(part, func(r rune) bool { return r < '0' || r > '9' })
		if end < 0 {
			end = len(part)
		}
		n, err := strconv.Atoi(part[:end])
		if err != nil {
			break
		}
		numbers = append(numbers, n)
		if end < len(part) {
			break
		}
	}
	return kind, numbers
}
