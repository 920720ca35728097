package traffic

import (
	"context"
	"sync"
	"time"
)

// Play plays all conversations at their times and returns when they are over. It
// calls step after each request.
func (c *Client) Play(ctx context.Context, conversations []Conversation, step func()) []Sample {
	var (
		group   sync.WaitGroup
		mu      sync.Mutex
		samples []Sample
	)
	begin := time.Now()
	for i := range conversations {
		group.Go(func() {
			c.Converse(ctx, begin, &conversations[i], func(s Sample) {
				mu.Lock()
				defer mu.Unlock()
				samples = append(samples, s)
				step()
			})
		})
	}
	group.Wait()
	return samples
}
