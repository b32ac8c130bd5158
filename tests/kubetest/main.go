// Command kubetest is a Kubernetes control plane for tests, in one binary: etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl.
// The first argument says which of them it is; the others are those of that program. See internal/kubetest, which runs it.
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

// programs makes the command of each program. The programs read os.Args for themselves, so only the one that is asked for may be made.
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

// etcdCommand is a single etcd that keeps its data in DIR, does not care about a power cut, and listens at the URLs given.
func etcdCommand() *cobra.Command {
	return &cobra.Command{
		Use:  "etcd DIR CLIENT-URL PEER-URL",
		Args: cobra.ExactArgs(3),
		RunE: func(_ *cobra.Command, args []string) error { return etcd(args[0], args[1], args[2]) },
	}
}

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
	c.UnsafeNoFsync = true // the data is thrown away
	e, err := embed.StartEtcd(c)
	if err != nil {
		return err
	}
	defer e.Close()
	select {
	case err = <-e.Err():
	case <-e.Server.StopNotify():
		err = errors.New("etcd has stopped")
	}
	return err
}
