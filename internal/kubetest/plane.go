package kubetest

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// controllers are the controllers that workloads need. There is none for the health of nodes,
// because the stand-in kubelet renews no leases. There is none for EndpointSlices, because it
// rejects loopback addresses.
const controllers = "deployment-controller,replicaset-controller,disruption-controller,statefulset-controller,job-controller,endpoints-controller," +
	"garbage-collector-controller,pod-garbage-collector-controller,namespace-controller,serviceaccount-controller," +
	"root-ca-certificate-publisher-controller"

// program is a process of the control plane.
type program struct {
	name, log string
	cmd       *exec.Cmd
	done      chan struct{} // closed when the process has ended
}

// spawn starts a program, which dies with this process. Its output is appended to a log file.
func (c *Cluster) spawn(name string, args ...string) (*program, error) {
	p := &program{name: name, log: c.path(name + ".log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(c.binary, append([]string{name}, args...)...)
	p.cmd.Dir = c.dir
	p.cmd.Env = c.environment()
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // The log shows how it ended.
	}()
	return p, nil
}

// environment returns an environment that hides the user's own configuration from the programs.
// They collect garbage rarely, because they live shortly and processors are scarcer than memory.
func (c *Cluster) environment() []string {
	return []string{"HOME=" + c.dir, "PATH=" + os.Getenv("PATH"), "KUBECONFIG=" + c.Kubeconfig, "KUBECACHEDIR=" + c.path("cache"), "KUBERC=off", "GOGC=400"}
}

func (p *program) kill() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Kill() // It may have ended already.
	<-p.done
}

const etcdSocket = "client:1"

// errEnded means that a program of the control plane has ended, so waiting is pointless.
var errEnded = errors.New("has ended")

func (p *program) checkAlive() error {
	select {
	case <-p.done:
		text, _ := os.ReadFile(p.log)
		return fmt.Errorf("%s %w: %s", p.name, errEnded, lastLines(text, 10))
	default:
		return nil
	}
}

func lastLines(text []byte, n int) string {
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// launch starts the programs and waits until the cluster works.
func (c *Cluster) launch(ctx context.Context) (err error) {
	// etcd listens on Unix sockets in the directory, so it needs no ports. etcd requires names that
	// look like host:port.
	if c.etcd, err = c.spawn("etcd", c.path("etcd"), "unix://"+etcdSocket, "unix://peer:1"); err != nil {
		return err
	}
	if err := c.startAPI(ctx); err != nil {
		return err
	}
	for name, args := range map[string][]string{
		"kube-controller-manager": {"--controllers=" + controllers, "--root-ca-file=" + c.path("tls.crt"), "--use-service-account-credentials=false"},
		"kube-scheduler":          nil,
	} {
		p, err := c.spawn(name, append(args, "--kubeconfig="+c.Kubeconfig, "--leader-elect=false", "--secure-port=0", "--profiling=false",
			"--kube-api-qps=500", "--kube-api-burst=1000")...)
		if err != nil {
			return err
		}
		c.control = append(c.control, p)
	}
	return c.waitServiceAccount(ctx, "default")
}

// startAPI starts the API server and waits until it is ready.
func (c *Cluster) startAPI(ctx context.Context) (err error) {
	c.api, err = c.spawn("kube-apiserver",
		"--etcd-servers=unix://"+c.path(etcdSocket), "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", c.port.number), "--permit-port-sharing", "--endpoint-reconciler-type=none",
		"--tls-cert-file="+c.path("tls.crt"), "--tls-private-key-file="+c.path("tls.key"), "--token-auth-file="+c.path("tokens.csv"),
		"--kubelet-preferred-address-types=InternalIP", "--authorization-mode=RBAC", "--allow-privileged",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+c.path("tls.key"), "--service-account-signing-key-file="+c.path("tls.key"),
		"--service-cluster-ip-range=10.0.0.0/24", "--profiling=false",
		// Otherwise a new node would be tainted until a controller that is missing here removes the
		// taint.
		"--disable-admission-plugins=TaintNodesByCondition",
		// Reserve needs it.
		"--enable-admission-plugins=PodNodeSelector")
	if err != nil {
		return err
	}
	return until(ctx, "the API server is ready", func() error {
		if err := errors.Join(c.etcd.checkAlive(), c.api.checkAlive()); err != nil {
			return err
		}
		return c.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// writeSecrets writes the API server's certificate and key, which also signs the tokens of service
// accounts, and the administrator's token. It returns that token.
func (c *Cluster) writeSecrets() (token string, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	certificate, err := selfSigned(key)
	if err != nil {
		return "", err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return "", err
	}
	token = rand.Text()
	return token, errors.Join(
		os.WriteFile(c.path("tls.crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}), 0o600),
		os.WriteFile(c.path("tls.key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600),
		os.WriteFile(c.path("tokens.csv"), []byte(token+",admin,admin,system:masters\n"), 0o600),
	)
}

func selfSigned(key crypto.Signer) ([]byte, error) {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubetest"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost", "kubernetes.default.svc"},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true, IsCA: true,
	}
	return x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
}

func (c *Cluster) writeKubeconfig(path, namespace, token string) error {
	ca, err := os.ReadFile(c.path("tls.crt"))
	if err != nil {
		return err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["kubetest"] = &clientcmdapi.Cluster{Server: "https://" + hostPort(c.port.number), CertificateAuthorityData: bytes.TrimSpace(ca)}
	config.AuthInfos["kubetest"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["kubetest"] = &clientcmdapi.Context{Cluster: "kubetest", AuthInfo: "kubetest", Namespace: namespace}
	config.CurrentContext = "kubetest"
	return clientcmd.WriteToFile(*config, path)
}
