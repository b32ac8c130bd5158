package admission

// usage is what one model has granted.
type usage struct {
	limits Limits
	leases int
	bucket bucket
}

// hasFreeLease reports whether the limit allows one more lease.
func (b *usage) hasFreeLease() bool {
	return !isReached(b.leases, b.limits.MaxConcurrent)
}
