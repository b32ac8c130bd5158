// Command kubetest is a Kubernetes control plane for tests in one binary: etcd, kube-apiserver,
// kube-controller-manager, kube-scheduler and kubectl. The package internal/kubetest runs it. The
// first argument selects the program, and the other arguments are passed to the program.
package main

import (
	"errors"
	"fmt"
	"net/url"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // the API server expects these metrics to be registered
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// programs holds the constructor of each program. The constructors read os.Args, so only the one of
// the selected program may be called.
var programs = map[string]func() *cobra.Command{
	"etcd":                    etcdCommand,
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubectl":                 kubectl.NewDefaultKubectlCommand,
}

func main() {
	if len(os.Args) < 2 || programs[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: kubetest etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kubectl [argument]...")
		os.Exit(2)
	}
	os.Args = os.Args[1:]
	command := programs[os.Args[0]]()
	if os.Args[0] == "kubectl" {
		kubectlutil.CheckErr(cli.RunNoErrOutput(command))
		return
	}
	os.Exit(cli.Run(command))
}

// etcdCommand returns the command of a single etcd. It keeps its data in DIR without syncing them
// to disk, and listens at the URLs.
func etcdCommand() *cobra.Command {
	return &cobra.Command{
		Use:  "etcd DIR CLIENT-URL PEER-URL",
		Args: cobra.ExactArgs(3),
		RunE: func(_ *cobra.Command, args []string) error { return etcd(args[0], args[1], args[2]) },
	}
}

// etcd runs etcd until it fails.
func etcd(dir, clientURL, peerURL string) error {
	client, err := url.Parse(clientURL)
	if err != nil {
		return err
	}
	peer, err := url.Parse(peerURL)
	if err != nil {
		return err
	}
	c := embed.NewConfig()
	c.Dir = dir
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.LogLevel = "warn"
	c.UnsafeNoFsync = true // the data are temporary
	e, err := embed.StartEtcd(c)
	if err != nil {
		return err
	}
	defer e.Close()
	select {
	case err = <-e.Err():
	case <-e.Server.StopNotify():
		err = errors.New("etcd has stopped unexpectedly")
	}
	return err
}
