package queue

// RememberedTenants is the number of tenants that the queue remembers.
func RememberedTenants[T any](q *Queue[T]) (n int) {
	q.bands.Ascend(func(b *band[T]) bool {
		n += len(b.tenants)
		return true
	})
	return n
}
