package queue_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/endpick/endpick/slo/queue"
)

// A queue is driven by its holder: here the fleet is full for 20 ms.
func ExampleQueue() {
	start := time.Unix(0, 0)
	q, err := queue.New(queue.Config{MaxRequests: 3}, func(item queue.Item[string], err error) {
		fmt.Println("dropped", item.Value, errors.Is(err, queue.ErrTimeout))
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, item := range []queue.Item[string]{
		{Value: "batch", Priority: -1},
		{Value: "chat", Deadline: start.Add(time.Second)},
		{Value: "impatient", Timeout: 10 * time.Millisecond},
		{Value: "urgent", Priority: 1},
	} {
		if _, err := q.Push(start, item); err != nil {
			fmt.Println(err)
		}
	}
	saturation := 1.2
	for now := start; q.Len() > 0; now = now.Add(5 * time.Millisecond) {
		if item, ok := q.Pop(now, saturation); ok {
			fmt.Println("dispatched", item.Value, now.Sub(start))
		}
		if now.Sub(start) >= 15*time.Millisecond {
			saturation = 0.7
		}
	}
	// Output:
	// dropped batch false
	// dropped impatient true
	// dispatched urgent 20ms
	// dispatched chat 25ms
}
