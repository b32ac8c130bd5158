package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"
)

// act returns what runs a command that does one thing to the model, replica or request of its
// argument. It calls method on the path, which has %s for the argument. done says what was done.
func (v *viewFlags) act(method, path, done string) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		client, err := v.open()
		if err != nil {
			return err
		}
		a := action{method: method, path: fmt.Sprintf(path, url.PathEscape(args[0]))}
		return v.do(cmd, client, a, nil, func(w io.Writer) { fmt.Fprintf(w, done+"\n", args[0]) })
	}
}

func newModelsCommand() *cobra.Command {
	var flags viewFlags
	models := &cobra.Command{
		Use:   "models",
		Short: "List the models, or drain, restart or scale one",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var list modelList
			return flags.show(cmd, "/api/v1/models", &list, func(w io.Writer) { writeModels(w, list.Models, terminalColumns(cmd)) })
		},
	}
	flags.addFlags(models)
	models.AddCommand(
		&cobra.Command{
			Use: "drain MODEL", Short: "Have a model refuse new requests; those that run or wait go on", Args: cobra.ExactArgs(1),
			RunE: flags.act(http.MethodPost, modelPath+"drain", "%s is drained: it takes no new requests until `sluice models undrain`"),
		},
		&cobra.Command{
			Use: "undrain MODEL", Short: "Have a drained model take requests again", Args: cobra.ExactArgs(1),
			RunE: flags.act(http.MethodPost, modelPath+"undrain", "%s takes requests again"),
		},
		&cobra.Command{
			Use: "restart MODEL", Short: "Replace the replicas of a model one after another, each when it has finished its requests", Args: cobra.ExactArgs(1),
			RunE: flags.act(http.MethodPost, modelPath+"restart", "the replicas of %s are replaced one after another"),
		},
		newScaleCommand(&flags),
	)
	for _, c := range models.Commands() {
		c.ValidArgsFunction = flags.completeModels()
	}
	return models
}

// modelPath is the path of one model in the admin API.
const modelPath = "/api/v1/models/%s/"

// newScaleCommand returns the command that sets how many replicas a model may have.
func newScaleCommand(flags *viewFlags) *cobra.Command {
	var least, most int
	var reset bool
	c := &cobra.Command{
		Use:   "scale MODEL [--min N] [--max N] | --reset",
		Short: "Set how many replicas a model has at least and at most, until the file changes",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			body, method := map[string]int{}, http.MethodPut
			if cmd.Flags().Changed("min") {
				body["min"] = least
			}
			if cmd.Flags().Changed("max") {
				body["max"] = most
			}
			if reset {
				method = http.MethodDelete
			} else if len(body) == 0 {
				return errors.New("say how many replicas: --min N, --max N, or --reset for the numbers of the file")
			}
			client, err := flags.open()
			if err != nil {
				return err
			}
			var now struct{ Min, Max int }
			a := action{method, fmt.Sprintf(modelPath, url.PathEscape(args[0])) + "scale", body}
			return flags.do(cmd, client, a, &now, func(w io.Writer) { fmt.Fprintf(w, "%s has %d to %d replicas\n", args[0], now.Min, now.Max) })
		},
	}
	c.Flags().IntVar(&least, "min", 0, "the least number of replicas")
	c.Flags().IntVar(&most, "max", 0, "the greatest number of replicas (default: the one in force, at least --min)")
	c.Flags().BoolVar(&reset, "reset", false, "restore the numbers of the file")
	c.MarkFlagsMutuallyExclusive("reset", "min")
	c.MarkFlagsMutuallyExclusive("reset", "max")
	return c
}

func newReplicasCommand() *cobra.Command {
	var flags viewFlags
	replicas := &cobra.Command{
		Use:   "replicas",
		Short: "Drain or restart a replica; `sluice ps` lists them",
	}
	flags.addFlags(replicas)
	replicas.AddCommand(
		&cobra.Command{
			Use: "drain REPLICA", Short: "Give a replica no new requests; those that run go on", Args: cobra.ExactArgs(1),
			RunE: flags.act(http.MethodPost, replicaPath+"drain", "%s is drained: it gets no new requests until `sluice replicas undrain`"),
		},
		&cobra.Command{
			Use: "undrain REPLICA", Short: "Give a drained replica requests again", Args: cobra.ExactArgs(1),
			RunE: flags.act(http.MethodPost, replicaPath+"undrain", "%s gets requests again"),
		},
		&cobra.Command{
			Use: "restart REPLICA", Short: "Replace a replica when it has finished its requests", Args: cobra.ExactArgs(1),
			RunE: flags.act(http.MethodPost, replicaPath+"restart", "%s is replaced when it has finished its requests"),
		},
	)
	for _, c := range replicas.Commands() {
		c.ValidArgsFunction = flags.completeReplicas()
	}
	return replicas
}

// replicaPath is the path of one replica in the admin API.
const replicaPath = "/api/v1/replicas/%s/"

func newCancelCommand(flags *viewFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "cancel REQUEST",
		Short: "End a request that runs or waits; `sluice requests` shows its id",
		Long: `End a request that runs or waits. A request that has no answer yet gets the error "cancelled". A
stream that has begun ends with this error if the gateway manages it, and breaks off if it is native.`,
		Args:              cobra.ExactArgs(1),
		RunE:              flags.act(http.MethodPost, "/api/v1/requests/%s/cancel", "%s is cancelled"),
		ValidArgsFunction: flags.completeRequests(),
	}
}
