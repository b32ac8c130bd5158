package main

import (
	"context"
	"net/http"
	"time"

	"github.com/spf13/cobra"
)

// completeTimeout is how long a shell waits for the names that the gateway knows.
const completeTimeout = 2 * time.Second

// completion is a function that completes the argument of a command.
type completion = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// complete returns what completes the one argument of a command by names that the gateway tells. A
// gateway that does not answer has no names.
func complete[T any](access *adminAccess, path string, names func(T) []string) completion {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		client, err := access.client()
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
		defer cancel()
		var answer T
		if err := client.Call(ctx, http.MethodGet, path, nil, &answer); err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return names(answer), cobra.ShellCompDirectiveNoFileComp
	}
}

func (a *adminAccess) completeModels() completion {
	return complete(a, "/api/v1/models", func(l modelList) (names []string) {
		for _, m := range l.Models {
			names = append(names, m.Name+"\t"+m.State)
		}
		return names
	})
}

func (a *adminAccess) completeReplicas() completion {
	return complete(a, "/api/v1/replicas", func(l replicaList) (names []string) {
		for _, r := range l.Replicas {
			names = append(names, r.ID+"\t"+r.State)
		}
		return names
	})
}

// completeRequests completes ids of requests that wait or run.
func (a *adminAccess) completeRequests() completion {
	return complete(a, "/api/v1/requests?limit=100", func(l requestList) (names []string) {
		for _, q := range l.Requests {
			if q.State != "done" {
				names = append(names, q.RequestID+"\t"+q.Model+" "+q.Tenant)
			}
		}
		return names
	})
}
