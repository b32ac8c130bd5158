package redis

import (
	"context"
	"strconv"
	"strings"
	"time"
)

// receiveEvents handles what other gateways publish, until ctx ends. Events that are missed while
// Redis is away are made up for by asking again.
func (s *Store) receiveEvents(ctx context.Context) {
	for ctx.Err() == nil {
		subscription := s.redis.Subscribe(ctx, s.prefix+"events")
		// A read that waits ignores its context.
		ended := context.AfterFunc(ctx, func() { _ = subscription.Close() })
		for {
			message, err := subscription.ReceiveMessage(ctx)
			if err != nil {
				break
			}
			s.handleEvent(message.Payload)
		}
		ended()
		_ = subscription.Close() // it is broken or no longer needed
		sleep(ctx, probeEvery)
	}
}

// handleEvent handles one message: a letter for its kind, the length of the sender's name, a colon,
// that name, and the rest. F: capacity of the model may be free. E: the task has ended. N: the task
// was renewed.
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
