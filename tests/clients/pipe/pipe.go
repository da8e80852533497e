// Package pipe speaks the protocol of docs/EXEC.md: orders on standard input, reports on standard output.
package pipe

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// Start is the first order.
type Start struct {
	Op          string          `json:"op"`
	Bootstrap   string          `json:"bootstrap"`
	Topic       string          `json:"topic"`
	Partitions  int32           `json:"partitions"`
	ClientID    string          `json:"client_id"`
	ClientRack  string          `json:"client_rack"`
	Settings    json.RawMessage `json:"settings"`
	Acks        string          `json:"acks"`
	Idempotence bool            `json:"idempotence"`
	LingerMs    int64           `json:"linger_ms"`
	DeadlineMs  int64           `json:"deadline_ms"`
	Group       string          `json:"group"`
	From        string          `json:"from"`
	Positions   map[int32]int64 `json:"positions"`
	Groups      []string        `json:"groups"`
	Isolation   string          `json:"isolation"`
	Transaction *Transaction    `json:"transaction"`
}

// Transaction has the settings of a producer's transactions.
type Transaction struct {
	ID        string `json:"id"`
	TimeoutMs int64  `json:"timeout_ms"`
}

// Timeout returns Kafka's `transaction.timeout.ms`.
func (transaction Transaction) Timeout() time.Duration {
	return time.Duration(transaction.TimeoutMs) * time.Millisecond
}

// Deadline returns the time limit of each record or commit.
func (start Start) Deadline() time.Duration {
	return time.Duration(start.DeadlineMs) * time.Millisecond
}

// Order is any later order, such as `send` or `commit`.
type Order struct {
	Do        string       `json:"do"`
	Seq       int64        `json:"seq"`
	Key       []byte       `json:"key"` // nil for null, which base64 in encoding/json keeps apart from an empty key
	Value     []byte       `json:"value"`
	Headers   [][2]*Base64 `json:"headers"`
	Group     string       `json:"group"`
	Partition int32        `json:"partition"`
	Offset    int64        `json:"offset"`
}

// Base64 is a JSON string as it stands: the name of a header, or its value in base64.
type Base64 string

// Bytes decodes the value of a header; nil stays nil.
func (text *Base64) Bytes() (content []byte) {
	if text != nil {
		quoted, _ := json.Marshal(string(*text))
		Must(json.Unmarshal(quoted, &content))
	}
	return content
}

var (
	output  sync.Mutex
	pending sync.Mutex
	timers  = map[int64]*time.Timer{} // of each order without a report
)

// Open reads the start order, and the settings of the arm into `settings`; a setting that it lacks is an error.
// Orders arrive on the channel until `close`; the end of standard input ends the process at once.
func Open(settings any) (start Start, orders chan Order) {
	input := bufio.NewReaderSize(os.Stdin, 1<<16) // a Scanner would refuse the order to send a large record
	read := func(into any) {
		line, err := input.ReadBytes('\n')
		if err != nil {
			os.Exit(1)
		}
		Must(json.Unmarshal(line, into))
	}
	read(&start)
	strict := json.NewDecoder(bytes.NewReader(start.Settings))
	strict.DisallowUnknownFields()
	Must(strict.Decode(settings))
	orders = make(chan Order, 100_000)
	go func() {
		for closed := false; ; {
			var order Order
			if read(&order); order.Do == "close" && !closed {
				closed = true
				close(orders)
			} else if !closed {
				orders <- order
			}
		}
	}()
	return start, orders
}

// Say writes a report with alternating names and values.
func Say(report string, details ...any) {
	message := map[string]any{"say": report}
	for at := 0; at < len(details); at += 2 {
		message[details[at].(string)] = details[at+1]
	}
	line, err := json.Marshal(message)
	Must(err)
	output.Lock()
	defer output.Unlock()
	os.Stdout.Write(append(line, '\n'))
}

// Must reports an error after which the program can't continue.
func Must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		Say("died", "why", err.Error())
		os.Exit(1)
	}
}

// Begin starts the deadline of an order, after which the order is reported as failed, in doubt.
func Begin(seq int64, deadline time.Duration) {
	pending.Lock()
	defer pending.Unlock()
	timers[seq] = time.AfterFunc(deadline, func() { Failed(seq, "_MSG_TIMED_OUT", true) })
}

// Acked reports an order as acknowledged, unless it was reported.
func Acked(seq int64, details ...any) { once(seq, "acked", details...) }

// Failed reports an order as failed, unless it was reported.
func Failed(seq int64, name string, inDoubt bool) {
	once(seq, "failed", "error", name, "in_doubt", inDoubt)
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

// Commit commits the orders of each group one by one, and those of several groups at once, until `close`.
func Commit(orders chan Order, deadline time.Duration, commit func(context.Context, Order)) {
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

// FailedWith reports an order as failed with Kafka's error code; in doubt if the code says that a retry may succeed.
func FailedWith(seq int64, code int16) {
	name, retriable := "UNKNOWN_SERVER_ERROR", true
	if known, ok := kerr.ErrorForCode(code).(*kerr.Error); ok {
		name, retriable = known.Message, known.Retriable
	}
	if code == kerr.NotLeaderForPartition.Code {
		name = "NOT_LEADER_OR_FOLLOWER" // since Kafka 2.6
	}
	Failed(seq, name, retriable)
}
