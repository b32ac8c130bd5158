package queue

// Bytes returns the memory that the queue holds, in bytes.
func (q *Queue) Bytes() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.held
}
