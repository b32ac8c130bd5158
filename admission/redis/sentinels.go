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
	return v.dial(ctx, network, v.most(address))
}

// most returns the address of the master that more sentinels tell than the given one. No connection
// waits for their answers.
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
	if !slices.Contains(v.told, address) {
		return address // a sentinel, or a master that no sentinel told
	}
	return mostTold(v.told, address)
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
