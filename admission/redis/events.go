package redis

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"strings"
	"time"

	client "github.com/redis/go-redis/v9"
	"go.uber.org/zap"
)

// silence is how long a subscription may receive nothing. This gateway publishes each of its own
// heartbeats, so a subscription that receives nothing for longer is dead, or at a server that is no
// longer the master.
const silence = 5 * heartbeatEvery

// receiveEvents handles what other gateways publish, until ctx ends. Events that are missed while
// Redis is away are made up for by asking again.
func (s *Store) receiveEvents(ctx context.Context) {
	refused := false
	for ctx.Err() == nil {
		refused = s.listen(ctx, refused)
		sleep(ctx, probeEvery)
	}
}

// listen subscribes and handles events until the subscription is broken or silent. It reports
// whether Redis has refused the subscription, and logs that unless the one before was refused too.
func (s *Store) listen(ctx context.Context, refused bool) bool {
	subscription := s.redis.Subscribe(ctx, s.prefix+"events")
	defer subscription.Close() //nolint:errcheck // it is broken or no longer needed
	// A read that waits ignores its context.
	defer context.AfterFunc(ctx, func() { _ = subscription.Close() })()
	for {
		received, err := subscription.ReceiveTimeout(ctx, silence)
		var answer client.Error
		if errors.As(err, &answer) && !refused {
			s.cfg.Log.Error("Redis refuses a subscription, what other gateways free or end is noticed late", zap.Error(err))
		}
		if err != nil {
			return answer != nil
		}
		refused = false
		switch received := received.(type) {
		case *client.Subscription:
			s.reportTasks()
		case *client.Message:
			s.handleEvent(received.Payload)
		}
	}
}

// reportTasks reports all tasks, so that the store tells of those that have ended unheard.
func (s *Store) reportTasks() {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(s.unreported, s.tasks)
	s.wakeRun()
}

// handleEvent handles one message: a letter for its kind, the length of the sender's name, a colon,
// that name, and the rest. F: capacity of the model may be free. E: the task has ended. N: the task
// was renewed. H: a heartbeat, which has served its purpose when it is received.
func (s *Store) handleEvent(message string) {
	if message == "" {
		return
	}
	length, rest, _ := strings.Cut(message[1:], ":")
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 || n > len(rest) || rest[:n] == s.cfg.Gateway {
		return
	}
	rest = rest[n:]
	switch message[0] {
	case 'F':
		s.mu.Lock()
		subscriber := s.subscriber
		s.mu.Unlock()
		if subscriber != nil {
			subscriber.CapacityFreed(rest)
		}
	case 'E':
		s.mu.Lock()
		delete(s.tasks, rest)
		delete(s.unreported, rest)
		subscriber := s.subscriber
		s.mu.Unlock()
		if subscriber != nil {
			subscriber.TaskEnded(rest)
		}
	case 'N':
		millis, id, _ := strings.Cut(rest, ":")
		ms, err := strconv.ParseInt(millis, 10, 64)
		if err != nil {
			return
		}
		lease := time.Duration(ms) * time.Millisecond
		s.mu.Lock()
		if h := s.tasks[id]; h != nil {
			h.expires = time.Now().Add(lease)
		}
		subscriber := s.subscriber
		s.mu.Unlock()
		if subscriber != nil {
			subscriber.TaskRenewed(id, lease)
		}
	}
}
