// Command hyperkube is Kubernetes 1.34 in one binary: etcd, the control plane, the node's agents, CoreDNS and kubectl.
//
// The name by which it is called says which of them it is, so that a folder of symbolic links is an installation.
// One binary links the modules they share once (145 MB instead of 700) and is one compilation.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var commands = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	"kube-proxy":              proxy.NewProxyCommand,
	"kubectl":                 kubectl.NewDefaultKubectlCommand,
}

// openVolumes lets every user write to the volumes of the built-in provisioner, which makes them for root alone.
func openVolumes() {
	for range time.Tick(50 * time.Millisecond) {
		volumes, _ := filepath.Glob("/tmp/hostpath_pv/*")
		for _, volume := range volumes {
			if info, err := os.Stat(volume); err == nil && info.Mode().Perm() != 0o777 {
				_ = os.Chmod(volume, 0o777)
			}
		}
	}
}

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "etcd":
		etcdmain.Main(os.Args)
	case "coredns":
		// CoreDNS's list of directives also gives their order; those of plugins that are not linked are unknown to it.
		dnsserver.Directives = []string{"bind", "ready", "errors", "cache", "kubernetes"}
		coremain.Run()
	case "kube-controller-manager":
		go openVolumes()
		fallthrough
	default:
		command, known := commands[name]
		if !known {
			names := []string{"etcd", "coredns"}
			for known := range commands {
				names = append(names, known)
			}
			sort.Strings(names)
			fmt.Fprintf(os.Stderr, "hyperkube: %q is not a component; link it to one of %s\n", name, strings.Join(names, ", "))
			os.Exit(2)
		}
		os.Exit(cli.Run(command()))
	}
}
