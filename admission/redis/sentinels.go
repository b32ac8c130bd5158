package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
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
// answers, also if it is cut off from the others and tells the master of before. So votes asks all
// sentinels beside each new connection, and the next connection goes to the master that most tell.
type votes struct {
	options *client.UniversalOptions
	dial    func(ctx context.Context, network, address string) (net.Conn, error)

	mu sync.Mutex
	// told are the addresses that the sentinels tell, at the time askedAt; guarded by mu.
	told    []string
	askedAt time.Time
}

// countVotes makes the connections of o go to the master that most sentinels tell.
func countVotes(o *client.UniversalOptions) {
	if o.Dialer == nil {
		o.Dialer = (&net.Dialer{Timeout: longestDial, KeepAliveConfig: keepAlive}).DialContext
	}
	asking := *o
	v := &votes{options: &asking, dial: o.Dialer}
	o.Dialer = v.dialMaster
}

// dialMaster connects to an address that a sentinel tells, or that is a sentinel's own.
func (v *votes) dialMaster(ctx context.Context, network, address string) (net.Conn, error) {
	most := address
	// No sentinel tells its own address, or that of a master that it is the first to know.
	if told := v.current(); slices.Contains(told, address) {
		most = mostTold(told, address)
	}
	c, err := v.dial(ctx, network, most)
	if err == nil && most != address {
		c = v.watch(c, most)
	}
	return c, err
}

// watch closes a connection when more sentinels tell another master than its address. The library
// does so only when the sentinel that it asks tells another one. But that one may have been the
// first to tell of a new master, while most told that of before.
func (v *votes) watch(c net.Conn, address string) net.Conn {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for ctx.Err() == nil && mostTold(v.current(), address) == address {
			sleep(ctx, votesEvery)
		}
		_ = c.Close() // it may be closed already
	}()
	return watched{c, cancel}
}

// watched is a connection that watch watches until it is closed.
type watched struct {
	net.Conn
	cancel context.CancelFunc
}

// Close closes the connection.
func (w watched) Close() error {
	w.cancel()
	return w.Conn.Close()
}

// current returns what the sentinels told last. No connection waits for their answers.
func (v *votes) current() []string {
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
	return v.told
}

func (v *votes) ask() {
	masters, _ := askSentinels(context.Background(), v.options)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.told = masters
}

// mostTold returns the address that most sentinels tell. Of several it returns the given one, or
// else the first. A sentinel without an answer tells "".
func mostTold(told []string, address string) string {
	count := map[string]int{}
	for _, other := range told {
		count[other]++
	}
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
