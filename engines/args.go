package engines

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// literalFlag matches a flag that an element of Command writes out.
var literalFlag = regexp.MustCompile(`(?:^|[^-\w])(--[A-Za-z][\w-]*)`)

// CheckArgs checks the arguments that a model adds to the command line. Sluice passes them on as
// they are. It only refuses those that would replace what Sluice itself sets, by the rules of
// ownedBy. The Path of a fault is the index of the argument. No Reason contains a value.
func (v Version) CheckArgs(args []string) []Fault {
	var faults []Fault
	for i, argument := range args {
		at := []string{fmt.Sprint(i)}
		if strings.Contains(argument, "\x00") {
			faults = append(faults, Fault{Path: at, Reason: "must not hold a NUL character"})
		}
		if owned := v.ownedBy(argument); owned != "" {
			faults = append(faults, Fault{Path: at, Reason: v.refusal(owned)})
		}
	}
	return faults
}

// refusal says why a flag that Sluice owns is refused.
func (v Version) refusal(owned string) string {
	name := strings.ReplaceAll(strings.TrimLeft(owned, "-"), "-", "_")
	if _, ok := v.properties()[name]; ok {
		return fmt.Sprintf("%s is set by Sluice: use the variable %s instead", owned, name)
	}
	return owned + " belongs to Sluice, which decides how a replica is reached and named: remove it"
}

// ownedBy returns the flag of Sluice's that an argument sets, or "". The argument may have a value
// after =, and _ for -. Engines whose version lists Owned also accept unambiguous beginnings of
// flags, as Python's argparse does. A flag of the schema is no such beginning.
func (v Version) ownedBy(argument string) string {
	name, _, _ := strings.Cut(argument, "=")
	if !strings.HasPrefix(name, "-") {
		return ""
	}
	if short := strings.TrimLeft(name, "-"); len(short) > 1 {
		name = flagOf(short)
	}
	owned := slices.Concat(v.ownedFlags(), v.GPU.flags())
	if slices.Contains(owned, name) {
		return name
	}
	if len(name) < len("--x") || len(v.Owned) == 0 || v.properties()[strings.ReplaceAll(name[2:], "-", "_")] != nil {
		return ""
	}
	for _, flag := range owned {
		if strings.HasPrefix(flag, name) {
			return flag
		}
	}
	return ""
}

// ownedFlags returns the flags that Sluice sets itself: those in Command, and Owned.
func (v Version) ownedFlags() []string {
	flags := slices.Clone(v.Owned)
	for _, element := range v.Command {
		if strings.Contains(element, "\n") {
			continue // a script, whose flags are those of other programs
		}
		for _, found := range literalFlag.FindAllStringSubmatch(element, -1) {
			flags = append(flags, strings.ReplaceAll(found[1], "_", "-"))
		}
	}
	return flags
}
