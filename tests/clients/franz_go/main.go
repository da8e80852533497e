// Command franz_go is a client of docs/EXEC.md built on github.com/twmb/franz-go.
package main

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"aftershock/clients/pipe"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// settings that an arm can have
var settings struct {
	AlwaysRetryEOF     bool  `json:"always_retry_eof"`
	MaxBufferedRecords int   `json:"max_buffered_records"`
	SessionTimeoutMs   int64 `json:"session.timeout.ms"`
	CommitsAborts      bool  `json:"commits_aborts"` // a planted defect: commits what it is ordered to abort
}

var background = context.Background()

func main() {
	start, orders := pipe.Open(&settings)
	counts := &traffic{bytes: map[int32]*[2]int64{}}
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(start.Bootstrap, ",")...),
		kgo.ClientID(start.ClientID),
		kgo.Rack(start.ClientRack),
		kgo.WithHooks(counts),
		kgo.DialTimeout(2 * time.Second),
		kgo.MetadataMinAge(250 * time.Millisecond),
	}
	if settings.AlwaysRetryEOF {
		options = append(options, kgo.AlwaysRetryEOF())
	}
	go counts.report()
	map[string]func(pipe.Start, chan pipe.Order, []kgo.Opt){"produce": produce, "consume": consume, "commit": commit}[start.Op](start, orders, options)
	pipe.Say("bye")
}

func open(options ...kgo.Opt) *kgo.Client {
	client, err := kgo.NewClient(options...)
	pipe.Must(err)
	return client
}

// awaitLeaders returns when each partition of the topic has a leader.
func awaitLeaders(client *kgo.Client, start pipe.Start) {
	for led := int32(0); led < start.Partitions; time.Sleep(50 * time.Millisecond) {
		led = 0
		metadata, err := kadm.NewClient(client).Metadata(background, start.Topic)
		if err != nil {
			continue
		}
		for _, partition := range metadata.Topics[start.Topic].Partitions {
			if partition.Err == nil && partition.Leader >= 0 {
				led++
			}
		}
	}
}

func produce(start pipe.Start, orders chan pipe.Order, options []kgo.Opt) {
	options = append(options,
		kgo.ProducerLinger(time.Duration(start.LingerMs)*time.Millisecond),
		kgo.RequiredAcks(map[string]kgo.Acks{"all": kgo.AllISRAcks(), "1": kgo.LeaderAck(), "0": kgo.NoAck()}[start.Acks]),
	)
	if !start.Idempotence {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	if settings.MaxBufferedRecords > 0 {
		options = append(options, kgo.MaxBufferedRecords(settings.MaxBufferedRecords))
	}
	if start.Transaction != nil {
		transact(start, orders, options)
		return
	}
	client := open(append(options, kgo.RecordDeliveryTimeout(start.Deadline()))...)
	awaitLeaders(client, start)
	for start.Idempotence {
		if _, _, err := client.ProducerID(background); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	pipe.Say("ready")
	for order := range orders {
		pipe.Begin(order.Seq, start.Deadline()+time.Second) // franz-go keeps deadlines between requests only
		client.TryProduce(background, record(start, order), func(record *kgo.Record, err error) {
			switch {
			case err != nil:
				fail(order.Seq, err)
			case start.Acks == "0":
				pipe.Acked(order.Seq, "partition", record.Partition)
			default:
				pipe.Acked(order.Seq, "partition", record.Partition, "offset", record.Offset)
			}
		})
	}
	pipe.AwaitReports()
}

func record(start pipe.Start, order pipe.Order) *kgo.Record {
	record := &kgo.Record{Topic: start.Topic, Key: order.Key, Value: order.Value}
	for _, header := range order.Headers {
		record.Headers = append(record.Headers, kgo.RecordHeader{Key: string(*header[0]), Value: header[1].Bytes()})
	}
	return record
}

// name returns the name of an error in Kafka or librdkafka.
func name(err error) string {
	var kafka *kerr.Error
	switch {
	case errors.As(err, &kafka):
		return kafka.Message
	case errors.Is(err, context.DeadlineExceeded):
		return "REQUEST_TIMED_OUT"
	}
	pipe.Say("error", "error", "_TRANSPORT", "detail", err.Error())
	return "_TRANSPORT"
}

// fail reports an error by its name in Kafka or librdkafka.
func fail(seq int64, err error) {
	var kafka *kerr.Error
	switch {
	case errors.As(err, &kafka):
		pipe.FailedWith(seq, kafka.Code)
	case errors.Is(err, kgo.ErrMaxBuffered):
		pipe.Failed(seq, "_QUEUE_FULL", false)
	case errors.Is(err, kgo.ErrRecordTimeout), errors.Is(err, context.DeadlineExceeded):
		pipe.Failed(seq, "_MSG_TIMED_OUT", true)
	default:
		pipe.Say("error", "error", "_TRANSPORT", "detail", err.Error())
		pipe.Failed(seq, "_TRANSPORT", true)
	}
}

func consume(start pipe.Start, orders chan pipe.Order, options []kgo.Opt) {
	if start.Isolation == "read_committed" {
		options = append(options, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	accepts := []string{"isolation"}
	if start.Group == "" {
		starts := map[int32]kgo.Offset{}
		for partition, offset := range start.Positions {
			starts[partition] = kgo.NewOffset().At(offset)
		}
		client := open(append(options, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{start.Topic: starts}))...)
		pipe.Say("assigned", "partitions", slices.Collect(maps.Keys(starts)))
		pipe.Say("ready", "accepts", accepts)
		poll(client, orders)
		client.Close()
		return
	}
	revoked := func(_ context.Context, client *kgo.Client, partitions map[string][]int32) {
		client.CommitUncommittedOffsets(background)
		pipe.Say("revoked", "partitions", append([]int32{}, partitions[start.Topic]...))
	}
	ready := sync.OnceFunc(func() { pipe.Say("ready", "accepts", accepts) })
	options = append(options,
		kgo.ConsumerGroup(start.Group),
		kgo.ConsumeTopics(start.Topic),
		kgo.ConsumeResetOffset(map[string]kgo.Offset{"earliest": kgo.NewOffset().AtStart(), "latest": kgo.NewOffset().AtEnd()}[start.From]),
		kgo.BlockRebalanceOnPoll(), // partitions are revoked after their records are reported
		kgo.OnPartitionsRevoked(revoked),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			pipe.Say("revoked", "partitions", append([]int32{}, partitions[start.Topic]...))
		}),
		kgo.OnPartitionsAssigned(func(_ context.Context, client *kgo.Client, partitions map[string][]int32) {
			member, _ := client.GroupMetadata()
			pipe.Say("assigned", "partitions", append([]int32{}, partitions[start.Topic]...), "member", member)
			ready()
		}),
	)
	if settings.SessionTimeoutMs > 0 {
		options = append(options, kgo.SessionTimeout(time.Duration(settings.SessionTimeoutMs)*time.Millisecond))
	}
	client := open(options...)
	poll(client, orders)
	client.CloseAllowingRebalance() // commits in `revoked`, and leaves the group
}

// poll reports records until `close`.
func poll(client *kgo.Client, orders chan pipe.Order) {
	polling, stop := context.WithCancel(background)
	go func() {
		<-orders
		stop()
	}()
	for polling.Err() == nil {
		fetches := client.PollFetches(polling)
		fetches.EachError(func(_ string, _ int32, err error) {
			if polling.Err() == nil {
				pipe.Say("error", "error", "_TRANSPORT", "detail", err.Error())
			}
		})
		fetches.EachRecord(func(record *kgo.Record) {
			var mark []byte
			for _, header := range record.Headers {
				if header.Key == "aftershock" {
					mark = header.Value
				}
			}
			pipe.Say("record", "partition", record.Partition, "offset", record.Offset, "mark", mark,
				"size_bytes", len(record.Value), "leader_epoch", record.LeaderEpoch)
		})
		client.AllowRebalance()
	}
}

func commit(start pipe.Start, orders chan pipe.Order, options []kgo.Opt) {
	client := open(append(options, kgo.RequestRetries(1000), kgo.RetryTimeout(start.Deadline()))...)
	awaitLeaders(client, start)
	pipe.Say("ready")
	pipe.Commit(orders, start.Deadline(), func(until context.Context, order pipe.Order) {
		offsets := kadm.Offsets{}
		offsets.AddOffset(start.Topic, order.Partition, order.Offset, -1)
		for {
			err := kadm.NewClient(client).CommitAllOffsets(until, order.Group, offsets)
			var kafka *kerr.Error
			if err == nil {
				pipe.Acked(order.Seq)
				return
			}
			if until.Err() != nil || errors.As(err, &kafka) && !kafka.Retriable {
				fail(order.Seq, err)
				return
			}
			time.Sleep(100 * time.Millisecond) // a connection that ends fails its requests
		}
	})
	client.Close()
}

type traffic struct {
	sync.Mutex
	bytes map[int32]*[2]int64
}

func (counts *traffic) add(node int32, column, size int) {
	if node < 0 {
		return // a bootstrap address
	}
	counts.Lock()
	defer counts.Unlock()
	if counts.bytes[node] == nil {
		counts.bytes[node] = &[2]int64{}
	}
	counts.bytes[node][column] += int64(size)
}

func (counts *traffic) OnBrokerWrite(meta kgo.BrokerMetadata, _ int16, size int, _, _ time.Duration, _ error) {
	counts.add(meta.NodeID, 0, size)
}

func (counts *traffic) OnBrokerRead(meta kgo.BrokerMetadata, _ int16, size int, _, _ time.Duration, _ error) {
	counts.add(meta.NodeID, 1, size)
}

func (counts *traffic) report() {
	for range time.Tick(time.Second) {
		counts.Lock()
		totals := map[int32][2]int64{}
		for node, both := range counts.bytes {
			totals[node] = *both
		}
		counts.Unlock()
		pipe.Say("traffic", "brokers", totals)
	}
}
