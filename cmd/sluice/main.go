// Command sluice is an LLM inference gateway around Envoy. An operator runs it as a gateway, as a
// node that runs replicas for a gateway, or as a tool for configuration files and keys: see
// README.md.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/console"
	"github.com/sluice-gateway/sluice/internal/gateway"
	_ "github.com/sluice-gateway/sluice/internal/process/guard" // "sluice guard"
	"github.com/sluice-gateway/sluice/internal/telemetry"
)

func main() {
	runtime.MemProfileRate = 0 // nothing reads the profile of the heap, which takes memory itself
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	// A second Ctrl-C kills the process, unless the package gateway handles the signal while it
	// drains.
	context.AfterFunc(ctx, stop)
	if err := newCommand().ExecuteContext(ctx); err != nil {
		gateway.ReportFailedStart(err)
		fmt.Fprintln(os.Stderr, "sluice:", err)
		os.Exit(1)
	}
}

// globals holds the flags that every command has.
type globals struct {
	logLevel, logFormat string
}

// logger returns the logger that the flags configure. screen is the terminal that stderr is; nil
// means that it is none.
func (g *globals) logger(screen *console.Screen) (*zap.Logger, error) {
	c := telemetry.LoggerConfig{Level: g.logLevel, Format: g.logFormat}
	if screen != nil {
		c.Terminal, c.Colour = screen, screen.Colour()
	}
	return telemetry.NewLogger(c)
}

func newCommand() *cobra.Command {
	var g globals
	root := &cobra.Command{
		Use:           "sluice",
		Short:         "An LLM inference gateway around Envoy",
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return telemetry.LoggerConfig{Level: g.logLevel, Format: g.logFormat}.Check()
		},
	}
	root.SetFlagErrorFunc(explainFlag)
	// The first line of a usage names the commands below a group already.
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), "{{if .HasAvailableSubCommands}}\n  {{.CommandPath}} [command]",
		"{{if and .HasAvailableSubCommands (not .DisableFlagsInUseLine)}}\n  {{.CommandPath}} [command]", 1))
	flags := root.PersistentFlags()
	flags.StringVar(&g.logLevel, "log-level", "", "debug, info, warn or error (default info; warn where a gateway's console is shown)")
	flags.StringVar(&g.logFormat, "log-format", telemetry.FormatAuto, "json, console, or auto: console on a terminal and json elsewhere")
	root.AddCommand(
		newUpCommand(&g), newServeCommand(&g), newBootstrapCommand(), newCheckCommand(), newSchemaCommand(), newImportCommand(),
		newKeysCommand(), newAdminCommand(), newReloadCommand(), newRestartCommand(), newNodeCommand(&g), newFetchCommand(),
		newSimCommand(), newVersionCommand(), newEnvoyCommand(), newStatusCommand(), newPSCommand(),
		newRequestsCommand(), newModelsCommand(), newReplicasCommand(), newLogsCommand(), newTopCommand(), newDoctorCommand(),
		newUsageCommand(),
	)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		explainArgs(c)
		if c.Name() == "help" {
			c.Run, c.RunE = nil, showHelp
		}
	}
	refuseUnknown(root)
	root.Args = cobra.ArbitraryArgs // else Cobra answers an unknown name
	return root
}

// showHelp prints the help of the command that the arguments name. The help command of Cobra
// succeeds although there is no such command.
func showHelp(c *cobra.Command, args []string) error {
	of, rest, _ := c.Root().Find(args)
	if len(rest) > 0 && of.HasSubCommands() {
		return unknownCommand(of, rest[0])
	}
	of.InitDefaultHelpFlag()
	of.InitDefaultVersionFlag()
	return of.Help()
}

// explainArgs makes this command and those below it answer wrong arguments with their usage. The
// errors of Cobra only count the arguments.
func explainArgs(c *cobra.Command) {
	for _, sub := range c.Commands() {
		explainArgs(sub)
	}
	check := c.Args
	if check == nil {
		return
	}
	c.Args = func(cmd *cobra.Command, args []string) error {
		if check(cmd, args) == nil {
			return cmp.Or(missingFlags(cmd), exclusiveFlags(cmd))
		}
		if err := refuseFile(cmd, args); err != nil {
			return err
		}
		switch {
		case len(args) == 0:
			return fmt.Errorf("an argument is missing: the command is `%s`", cmd.UseLine())
		case cmd.HasSubCommands():
			return unknownCommand(cmd, args[0])
		default:
			return fmt.Errorf("%q is one argument too many: the command is `%s`", args[len(args)-1], cmd.UseLine())
		}
	}
}

// explainFlag returns an error of a flag that says what to do. The errors of pflag have those of
// Go's parsers in them.
func explainFlag(cmd *cobra.Command, err error) error {
	if names := cmd.Flags().Args(); cmd.HasSubCommands() && len(names) > 0 { // the flag belongs to a command that is unknown
		return unknownCommand(cmd, names[0])
	}
	value := new(pflag.InvalidValueError)
	if !errors.As(err, &value) {
		return fmt.Errorf("%w: `%s --help` lists the flags", err, cmd.CommandPath())
	}
	want := map[string]string{
		"int": "a whole number", "uint64": "a whole number from 0", "float64": "a number", "duration": "a time such as 30s or 5m", "bool": "true or false",
		"stringSlice": "names with commas between them",
	}
	flag := value.GetFlag()
	return fmt.Errorf("--%s is %q: use %s", flag.Name, value.GetValue(), cmp.Or(want[flag.Value.Type()], flag.Value.Type()))
}

// missingFlags returns an error if a flag is missing that the command needs. Cobra's own error does
// not say what to do.
func missingFlags(cmd *cobra.Command) error {
	if cmd.ValidateRequiredFlags() == nil {
		return nil
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if len(f.Annotations[cobra.BashCompOneRequiredFlag]) > 0 && !f.Changed {
			names = append(names, "--"+f.Name)
		}
	})
	return fmt.Errorf("%s is missing: the command is `%s`", strings.Join(names, " and "), cmd.UseLine())
}

// exclusiveFlags returns an error if flags are given that exclude each other. Cobra's own error is
// about a group with a set flag.
func exclusiveFlags(cmd *cobra.Command) error {
	err := cmd.ValidateFlagGroups()
	if err == nil {
		return nil
	}
	_, given, found := strings.Cut(err.Error(), "; [")
	given, _, ended := strings.Cut(given, "] were all set")
	if !found || !ended {
		return err
	}
	return fmt.Errorf("--%s exclude each other: give one of them", strings.Join(strings.Fields(given), " and --"))
}

// refuseFile returns an error if an argument is a configuration file and the command takes one by
// -c alone.
func refuseFile(cmd *cobra.Command, args []string) error {
	if cmd.Flags().Lookup("config") == nil {
		return nil
	}
	for _, arg := range args {
		if ext := filepath.Ext(arg); ext == ".yaml" || ext == ".yml" {
			return fmt.Errorf("%q is a configuration file: name it by -c %s", arg, arg)
		}
	}
	return nil
}

// unknownCommand is the error of a name below a command that has no such command.
func unknownCommand(cmd *cobra.Command, name string) error {
	if !cmd.HasParent() { // it has too many commands for a line
		cmd.SuggestionsMinimumDistance = min(len(name)/2, 2)
		meant := ""
		if near := cmd.SuggestionsFor(name); len(near) > 0 && name != "" {
			meant = "did you mean " + strings.Join(near, " or ") + "? "
		}
		return fmt.Errorf("%s has no command %q: %s`%s --help` lists the commands", cmd.CommandPath(), name, meant, cmd.CommandPath())
	}
	var names []string
	for _, sub := range cmd.Commands() {
		if !sub.Hidden {
			names = append(names, sub.Name())
		}
	}
	return fmt.Errorf("%s has no command %q: use %s", cmd.CommandPath(), name, strings.Join(names, ", "))
}

// refuseUnknown has the groups of commands, this one and those below it, fail where a name below
// them is unknown. Cobra prints their help and succeeds.
func refuseUnknown(c *cobra.Command) {
	for _, sub := range c.Commands() {
		refuseUnknown(sub)
	}
	if !c.HasSubCommands() || c.Runnable() {
		return
	}
	c.Use += " COMMAND"
	c.DisableFlagsInUseLine = true
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return unknownCommand(cmd, args[0])
	}
}
