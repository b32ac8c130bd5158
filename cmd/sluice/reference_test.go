package main

import (
	"cmp"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

var update = flag.Bool("update", false, "write docs/reference/cli.md")

// TestO11_CommandReferenceIsCurrent checks that the page of all commands is the one generated from
// the commands and their flags.
func TestO11_CommandReferenceIsCurrent(t *testing.T) {
	t.Parallel()
	testutil.Golden(t, "../../docs/reference/cli.md", commandReference(), *update)
}

// TestO11_EachCommandSaysWhatItDoes checks that each command and each flag has an explanation.
func TestO11_EachCommandSaysWhatItDoes(t *testing.T) {
	t.Parallel()
	for _, c := range visibleCommands(newCommand()) {
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: the summary must be a phrase without a full stop, is %q", c.CommandPath(), c.Short)
		}
		c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s --%s has no explanation", c.CommandPath(), f.Name)
			}
		})
	}
}

func commandReference() string {
	root := newCommand()
	var b strings.Builder
	b.WriteString(`# Every command of sluice

This page is generated from ` + "`cmd/sluice`" + ` by ` + "`go test ./cmd/sluice -run Reference -update`" + `. ` + "`sluice COMMAND --help`" + ` prints the same for one command.
[operate.md](../operate.md) shows the commands at work.

| command | what it does |
| --- | --- |
`)
	all := visibleCommands(root)
	for _, c := range all {
		if c.Runnable() {
			fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", c.CommandPath(), strings.ReplaceAll(c.CommandPath(), " ", "-"), markdown(c.Short))
		}
	}
	b.WriteString("| `sluice completion SHELL` | Print a script that completes commands, flags and names in bash, zsh, fish or powershell; with `--help`, how to load it |\n")
	b.WriteString("\n## Flags of every command\n")
	writeFlags(&b, root.PersistentFlags())
	for _, c := range all {
		writeCommand(&b, c)
	}
	return b.String()
}

// writeCommand writes the section of a command. A group of commands that does nothing by itself has
// one only if it has flags.
func writeCommand(b *strings.Builder, c *cobra.Command) {
	own, shared := c.LocalNonPersistentFlags(), c.PersistentFlags()
	group := len(c.Commands()) > 0
	if group && !c.Runnable() && !shared.HasAvailableFlags() {
		return
	}
	fmt.Fprintf(b, "\n## %s\n\n", c.CommandPath())
	if c.Runnable() {
		fmt.Fprintf(b, "```text\n%s\n```\n\n", strings.TrimSuffix(c.UseLine(), " [flags]"))
	}
	b.WriteString(markdown(cmp.Or(c.Long, c.Short+".")) + "\n")
	if !group {
		own.AddFlagSet(shared)
	}
	writeFlags(b, own)
	if group && shared.HasAvailableFlags() {
		fmt.Fprintf(b, "\nThese flags belong to each command of `%s`:\n", c.CommandPath())
		writeFlags(b, shared)
	}
}

// visibleCommands returns the commands below c that are not hidden, each group before its commands.
// It omits those of Cobra.
func visibleCommands(c *cobra.Command) []*cobra.Command {
	var all []*cobra.Command
	for _, child := range c.Commands() {
		if !child.Hidden && child.Name() != "help" && child.Name() != "completion" {
			all = append(append(all, child), visibleCommands(child)...)
		}
	}
	return all
}

// writeFlags writes a table of flags, or nothing if there is none.
func writeFlags(b *strings.Builder, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	b.WriteString("\n| flag | default | meaning |\n| --- | --- | --- |\n")
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		name := "`--" + f.Name
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		if value != "" {
			name += " " + strings.ToUpper(strings.TrimSuffix(value, "Array"))
		}
		def := f.DefValue
		if slices.Contains([]string{"", "[]", "false", "0", "0s"}, def) {
			def = "–"
		} else {
			def = "`" + def + "`"
		}
		fmt.Fprintf(b, "| %s` | %s | %s |\n", name, def, markdown(strings.ReplaceAll(usage, "\n", " ")))
	})
}

// markdown returns text of a command as Markdown.
func markdown(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`).Replace(text)
}
