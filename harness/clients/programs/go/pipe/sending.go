package pipe

import (
	"context"
	"sync"
	"time"
)

var (
	pending sync.Mutex
	timers  = map[int64]*time.Timer{} // of each order without a report
)

// Begin starts the deadline of an order, after which the order is reported as failed, in doubt.
func Begin(seq int64, deadline time.Duration) {
	pending.Lock()
	defer pending.Unlock()
	timers[seq] = time.AfterFunc(deadline, func() { Failed(seq, "_MSG_TIMED_OUT", "in_doubt", true) })
}

// Offer begins an order and hands its message to the queue of a producer; the order fails if the queue is full.
func Offer[Message any](queue chan<- Message, message Message, seq int64, deadline time.Duration) {
	Begin(seq, deadline)
	select {
	case queue <- message:
	default:
		Failed(seq, "_QUEUE_FULL", "in_doubt", false)
	}
}

// Acked reports an order as acknowledged, unless it was reported.
func Acked(seq int64, details ...any) { once(seq, "acked", details...) }

// Failed reports an order as failed, unless it was reported; without `in_doubt` among the details, the error decides.
func Failed(seq int64, name string, details ...any) {
	once(seq, "failed", append(details, "error", name)...)
}

func once(seq int64, report string, details ...any) {
	pending.Lock()
	timer := timers[seq]
	delete(timers, seq)
	pending.Unlock()
	if timer != nil {
		timer.Stop()
		Say(report, append([]any{"seq", seq}, details...)...)
	}
}

// AwaitReports returns when every order is reported.
func AwaitReports() {
	for open := 1; open > 0; time.Sleep(10 * time.Millisecond) {
		pending.Lock()
		open = len(timers)
		pending.Unlock()
	}
}

// CommitEach commits the orders of each group one by one, and those of several groups at once, until `close`.
func CommitEach(orders chan Order, deadline time.Duration, commit func(context.Context, Order)) {
	queues := map[string]chan func(){}
	for order := range orders {
		until, cancel := context.WithTimeout(context.Background(), deadline)
		Begin(order.Seq, deadline)
		queue := queues[order.Group]
		if queue == nil {
			queue = make(chan func(), 10_000)
			queues[order.Group] = queue
			go func() {
				for next := range queue {
					next()
				}
			}()
		}
		queue <- func() {
			defer cancel()
			commit(until, order)
		}
	}
	AwaitReports()
}

// Transacted reports that an order about transactions was carried out, or has failed.
func Transacted(order string, details ...any) {
	Say("transacted", append([]any{"did", order}, details...)...)
}
