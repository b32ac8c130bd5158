package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	client "github.com/redis/go-redis/v9"
)

const (
	// sentinelTimeout is how long a sentinel may take to tell where the master is.
	sentinelTimeout = time.Second
	// votesEvery is the least time between two questions to all sentinels. Answers count for
	// votesLast.
	votesEvery = time.Second
	votesLast  = 10 * time.Second
)

// votes knows which master the sentinels tell. The library asks one sentinel as long as that one
// answers. That one may be cut off from the others and tell the master of before. Or it leads the
// failover: then it publishes the new master last, when all replicas follow that one. So votes asks
// all sentinels, and connections go to the master that most tell.
type votes struct {
	// options and dial are those of the first client, without votes.
	options *client.UniversalOptions
	dial    func(ctx context.Context, network, address string) (net.Conn, error)

	mu sync.Mutex
	// told are the addresses that the sentinels tell, at the time askedAt; guarded by mu.
	told    []string
	askedAt time.Time
	// masters are all addresses that a sentinel has told; guarded by mu.
	masters map[string]bool
}

// count makes the connections of o go to the master that most sentinels tell. o is that of one of
// several clients for the same Redis.
func (v *votes) count(o *client.UniversalOptions) {
	if o.Dialer == nil {
		o.Dialer = (&net.Dialer{Timeout: longestDial, KeepAliveConfig: keepAlive}).DialContext
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.options == nil {
		asking := *o
		v.options, v.dial, v.masters = &asking, o.Dialer, map[string]bool{}
	}
	o.Dialer = v.dialMaster
}

// dialMaster connects to an address that a sentinel tells, or that is a sentinel's own.
func (v *votes) dialMaster(ctx context.Context, network, address string) (net.Conn, error) {
	address = v.most(address)
	c, err := v.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return v.watch(c, address), nil
}

// watch closes a connection to a master when more sentinels tell another one.
func (v *votes) watch(c net.Conn, address string) net.Conn {
	life, end := context.WithCancel(context.Background())
	w := watched{c, life, end}
	go func() {
		for life.Err() == nil && v.most(address) == address {
			sleep(life, votesEvery)
		}
		_ = w.Close() // it may be closed already
	}()
	return w
}

// watched is a connection that watch watches until it is closed.
type watched struct {
	net.Conn
	life context.Context
	end  context.CancelFunc
}

// Close closes the connection.
func (w watched) Close() error {
	w.end()
	return w.Conn.Close()
}

// SyscallConn is how the library finds out whether a connection of its pool was closed meanwhile.
// It looks at the socket. With TLS it may not, so it learns of Close alone.
func (w watched) SyscallConn() (syscall.RawConn, error) {
	if w.life.Err() != nil {
		return nil, net.ErrClosed
	}
	if plain, ok := w.Conn.(syscall.Conn); ok {
		return plain.SyscallConn()
	}
	return unseen{}, nil
}

// unseen is a socket at which nobody may look.
type unseen struct{ syscall.RawConn }

// Read does nothing.
func (unseen) Read(func(fd uintptr) bool) error { return nil }

// most returns the address of the master that more sentinels tell than the given one. Nobody waits
// for their answers.
func (v *votes) most(address string) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	since := time.Since(v.askedAt)
	if since > votesLast {
		v.told = nil
	}
	if since > votesEvery {
		v.askedAt = time.Now()
		go v.ask()
	}
	if !v.masters[address] {
		return address // a sentinel, or a master that no sentinel told
	}
	return mostTold(v.told, address)
}

func (v *votes) ask() {
	masters, _ := askSentinels(context.Background(), v.options)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.told = masters
	for _, address := range masters {
		v.masters[address] = true
	}
}

// mostTold returns the address that most sentinels tell. Of several it returns the given one, or
// else the first. A sentinel without an answer tells "", and counts for the given address: one
// sentinel that is wrong must not decide while the others are silent.
func mostTold(told []string, address string) string {
	count := map[string]int{}
	for _, other := range told {
		count[other]++
	}
	count[address] += count[""]
	count[""] = 0
	for _, other := range told {
		if count[other] > count[address] {
			address = other
		}
	}
	return address
}

// askSentinels asks all sentinels at once where the master is. It returns the address that each of
// them tells, or an error.
func askSentinels(ctx context.Context, o *client.UniversalOptions) (masters []string, faults []error) {
	ctx, cancel := context.WithTimeout(ctx, sentinelTimeout)
	defer cancel()
	masters, faults = make([]string, len(o.Addrs)), make([]error, len(o.Addrs))
	var asked sync.WaitGroup
	for i, address := range o.Addrs {
		asked.Go(func() { masters[i], faults[i] = askSentinel(ctx, o, address) })
	}
	asked.Wait()
	return masters, faults
}

// askSentinel returns the address of the master that a sentinel tells.
func askSentinel(ctx context.Context, o *client.UniversalOptions, address string) (string, error) {
	c := client.NewSentinelClient(&client.Options{Addr: address, Username: o.SentinelUsername, Password: o.SentinelPassword, Dialer: o.Dialer,
		MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true, DisableIdentity: true})
	defer c.Close() //nolint:errcheck // nothing was changed
	told, err := c.GetMasterAddrByName(ctx, o.MasterName).Result()
	if errors.Is(err, client.Nil) {
		err = fmt.Errorf("it knows no master %q", o.MasterName)
	}
	if err != nil || len(told) < 2 {
		return "", err
	}
	return net.JoinHostPort(told[0], told[1]), nil
}

// usableSentinels returns the addresses of the sentinels that tell the master that most of them
// tell, and an error for each other one.
func usableSentinels(ctx context.Context, o *client.UniversalOptions) (telling []string, silent []error) {
	masters, faults := askSentinels(ctx, o)
	master := mostTold(masters, "")
	for i, address := range o.Addrs {
		switch {
		case faults[i] != nil:
			silent = append(silent, fmt.Errorf("sentinel %s: %w", address, faults[i]))
		case masters[i] != master:
			silent = append(silent, fmt.Errorf("sentinel %s: it tells the master %s, and others tell %s", address, masters[i], master))
		default:
			telling = append(telling, address)
		}
	}
	return telling, silent
}
