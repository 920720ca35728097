package queue_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo/queue"
)

// A queue is driven by its owner: here the fleet is full for 20 ms.
func ExampleQueue() {
	start := time.Unix(0, 0)
	q, err := queue.New(queue.Config{MaxRequests: 3}, func(item queue.Item[string], err error) {
		fmt.Println("dropped", item.Value, errors.Is(err, queue.ErrTimeout))
	})
	if err != nil {
		panic(err)
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
	for now := start; q.Stats().Requests > 0; now = now.Add(5 * time.Millisecond) {
		if item, ok := q.Pop(now, saturation); ok {
			fmt.Println("dispatched", item.Value, now.Sub(start))
		}
		if now.Sub(start) >= 15*time.Millisecond {
			saturation = 0.7
		}
	}
	fmt.Printf("%+v\n", q.Stats())
	// Output:
	// dropped batch false
	// dropped impatient true
	// dispatched urgent 20ms
	// dispatched chat 25ms
	// {Pushed:4 Dispatched:2 TimedOut:1 Shed:1 Canceled:0 Refused:0 Requests:0 Tokens:0 Bytes:0}
}

// Tenants take turns, whatever they ask for and however many requests they have.
func ExampleNewItem() {
	now := time.Unix(0, 0)
	q, err := queue.New(queue.Config{}, func(queue.Item[int], error) {})
	if err != nil {
		panic(err)
	}
	for i, tenant := range []string{"crowd", "crowd", "crowd", "quiet"} {
		req := endpick.Request{Tenant: tenant, InputTokens: 100, SLO: endpick.SLO{TTFT: time.Second}}
		if _, err := q.Push(now, queue.NewItem(now, &req, i)); err != nil {
			fmt.Println(err)
		}
	}
	for {
		item, ok := q.Pop(now, 0)
		if !ok {
			break
		}
		fmt.Println(item.Tenant, item.Value)
	}
	// Output:
	// crowd 0
	// quiet 3
	// crowd 1
	// crowd 2
}

// While the fleet is full, what can be shed is rejected at once.
func ExampleRejectSheddable() {
	router, err := endpick.New(endpick.Config{
		Endpoints: []endpick.Endpoint{{ID: "gpu-0"}},
		Policy: endpick.Policy{Admitters: []endpick.Admitter{
			queue.RejectSheddable(queue.Utilization(10, 0)),
		}},
	})
	if err != nil {
		panic(err)
	}
	if err := router.Report("gpu-0", endpick.Load{Waiting: 12}); err != nil {
		panic(err)
	}
	for _, priority := range []int{-1, 0} {
		lease, err := router.Route(endpick.Request{Priority: priority})
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println("served")
		lease.Done(endpick.Outcome{})
	}
	// Output:
	// endpick: request rejected: queue: saturated: 1.00 of capacity is taken and priority -1 can be shed
	// served
}
