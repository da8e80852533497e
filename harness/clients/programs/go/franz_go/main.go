// Command franz_go is a client of docs/EXEC.md built on github.com/twmb/franz-go.
package main

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"aftershock/clients/pipe"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// settings that an arm can have
var settings struct {
	AlwaysRetryEOF     bool  `json:"always_retry_eof"`
	MaxBufferedRecords int   `json:"max_buffered_records"`
	SessionTimeoutMs   int64 `json:"session.timeout.ms"`
	HeartbeatMs        int64 `json:"heartbeat.interval.ms"`
	IDByBegin          bool  `json:"id_by_begin"`    // the first transaction gets the producer's id, not the program before
	CommitsAborts      bool  `json:"commits_aborts"` // a planted defect: commits what it is ordered to abort
}

// alwaysRetryEOF is an option of newer versions.
var alwaysRetryEOF func() kgo.Opt

var (
	background = context.Background()
	traffic    pipe.Traffic
)

func main() {
	pipe.Program{
		Module:   "github.com/twmb/franz-go",
		Settings: &settings,
		Lacks: map[string]string{
			"protocol": "franz-go has the consumer protocol (KIP-848) as a preview only",
		},
		Ops: map[string]func(pipe.Start, chan pipe.Order){"produce": produce, "consume": consume, "commit": commit},
	}.Run()
}

func optionsOf(start pipe.Start) []kgo.Opt {
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(start.Bootstrap, ",")...),
		kgo.ClientID(start.ClientID),
		kgo.Rack(start.ClientRack),
		kgo.WithHooks(hooks{}),
		kgo.DialTimeout(2 * time.Second),
		kgo.MetadataMinAge(250 * time.Millisecond),
	}
	if settings.AlwaysRetryEOF {
		if alwaysRetryEOF == nil {
			pipe.Must(errors.New("this version of franz-go has no AlwaysRetryEOF: remove the setting always_retry_eof"))
		}
		options = append(options, alwaysRetryEOF())
	}
	go traffic.Report()
	return options
}

func open(options ...kgo.Opt) *kgo.Client {
	client, err := kgo.NewClient(options...)
	pipe.Must(err)
	return client
}

// awaitLeaders returns when each partition of the topics has a leader.
func awaitLeaders(client *kgo.Client, start pipe.Start) {
	for _, topic := range start.Topics {
		request := kmsg.NewPtrMetadataRequest()
		named := kmsg.NewMetadataRequestTopic()
		named.Topic = kmsg.StringPtr(topic.Name)
		request.Topics = append(request.Topics, named)
		for led := int32(0); led < topic.Partitions; time.Sleep(50 * time.Millisecond) {
			led = 0
			metadata, err := request.RequestWith(background, client)
			if err != nil || len(metadata.Topics) != 1 {
				continue
			}
			for _, partition := range metadata.Topics[0].Partitions {
				if partition.ErrorCode == 0 && partition.Leader >= 0 {
					led++
				}
			}
		}
	}
}

func produce(start pipe.Start, orders chan pipe.Order) {
	options := append(optionsOf(start),
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
	pipe.Say("ready", "accepts", []string{"topics"})
	for order := range orders {
		send(client, start, order, func(error) {})
	}
	pipe.AwaitReports()
}

// send produces a record, reports its result, and tells an error to `onError`.
func send(client *kgo.Client, start pipe.Start, order pipe.Order, onError func(error)) {
	pipe.Begin(order.Seq, start.Deadline()+time.Second) // franz-go keeps deadlines between requests only
	record := &kgo.Record{Topic: order.Topic, Key: order.Key, Value: order.Value}
	for _, header := range order.Headers {
		record.Headers = append(record.Headers, kgo.RecordHeader{Key: string(*header[0]), Value: header[1].Bytes()})
	}
	client.TryProduce(background, record, func(record *kgo.Record, err error) {
		switch {
		case err != nil:
			onError(err)
			fail(order.Seq, err)
		case start.Acks == "0":
			pipe.Acked(order.Seq, "partition", record.Partition)
		default:
			pipe.Acked(order.Seq, "partition", record.Partition, "offset", record.Offset)
		}
	})
}

// name returns the name of an error in Kafka or librdkafka.
func name(err error) string {
	var kafka *kerr.Error
	switch {
	case errors.As(err, &kafka):
		return pipe.ErrorName(int(kafka.Code))
	case errors.Is(err, kgo.ErrMaxBuffered):
		return "_QUEUE_FULL"
	case errors.Is(err, kgo.ErrRecordTimeout), errors.Is(err, context.DeadlineExceeded):
		return "_MSG_TIMED_OUT"
	}
	pipe.Complain("_TRANSPORT", err)
	return "_TRANSPORT"
}

// fail reports an error by its name in Kafka or librdkafka; Kafka's errors are in doubt if a retry may succeed.
func fail(seq int64, err error) {
	var kafka *kerr.Error
	inDoubt := !errors.Is(err, kgo.ErrMaxBuffered)
	if errors.As(err, &kafka) {
		inDoubt = kafka.Retriable
	}
	pipe.Failed(seq, name(err), "in_doubt", inDoubt)
}

func consume(start pipe.Start, orders chan pipe.Order) {
	options := optionsOf(start)
	if start.Isolation == "read_committed" {
		options = append(options, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	accepts := []string{"isolation", "topics"}
	processed := pipe.NewProcessed(start)
	if start.Group == "" {
		starts, places := map[string]map[int32]kgo.Offset{}, []pipe.Place{}
		for _, topic := range start.Topics {
			starts[topic.Name] = map[int32]kgo.Offset{}
			for partition, offset := range topic.Positions {
				starts[topic.Name][partition] = kgo.NewOffset().At(offset)
				places = append(places, pipe.Place{Topic: topic.Name, Partition: partition})
			}
		}
		client := open(append(options, kgo.ConsumePartitions(starts))...)
		pipe.SayPartitions("assigned", start, places)
		pipe.Say("ready", "accepts", accepts)
		poll(client, processed, orders)
		client.Close()
		return
	}
	ready := sync.OnceFunc(func() { pipe.Say("ready", "accepts", accepts) })
	revoked := func(_ context.Context, client *kgo.Client, partitions map[string][]int32) {
		places := placesOf(partitions)
		if start.Commits == nil {
			client.CommitUncommittedOffsets(background)
		} else {
			commitProcessed(client, processed.Take(places), client.CommitOffsetsSync)
		}
		pipe.SayPartitions("revoked", start, places)
	}
	options = append(options,
		kgo.ConsumerGroup(start.Group),
		kgo.ConsumeTopics(start.TopicNames()...),
		kgo.ConsumeResetOffset(map[string]kgo.Offset{"earliest": kgo.NewOffset().AtStart(), "latest": kgo.NewOffset().AtEnd()}[start.From]),
		kgo.BlockRebalanceOnPoll(), // partitions are revoked after their records are reported
		kgo.OnPartitionsRevoked(revoked),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			processed.Take(placesOf(partitions))
			pipe.SayPartitions("lost", start, placesOf(partitions))
		}),
		kgo.OnPartitionsAssigned(func(_ context.Context, client *kgo.Client, partitions map[string][]int32) {
			member, epoch := client.GroupMetadata()
			pipe.SayPartitions("assigned", start, placesOf(partitions), "member", member, "epoch", epoch)
			ready()
		}),
	)
	if start.Pattern != "" {
		options = append(options, kgo.ConsumeTopics("^("+start.Pattern+")$"), kgo.ConsumeRegex())
	}
	if start.Commits != nil {
		options = append(options, kgo.DisableAutoCommit())
	}
	if start.InstanceID != "" {
		options = append(options, kgo.InstanceID(start.InstanceID))
	}
	if start.Assignor != "" {
		options = append(options, kgo.Balancers(map[string]kgo.GroupBalancer{
			"range": kgo.RangeBalancer(), "roundrobin": kgo.RoundRobinBalancer(), "sticky": kgo.StickyBalancer(),
			"cooperative-sticky": kgo.CooperativeStickyBalancer()}[start.Assignor]))
	}
	if settings.SessionTimeoutMs > 0 {
		options = append(options, kgo.SessionTimeout(time.Duration(settings.SessionTimeoutMs)*time.Millisecond))
	}
	if settings.HeartbeatMs > 0 {
		options = append(options, kgo.HeartbeatInterval(time.Duration(settings.HeartbeatMs)*time.Millisecond))
	}
	client := open(options...)
	if start.Members > 1 {
		ready() // a member of several may get no partitions
	}
	poll(client, processed, orders)
	client.CloseAllowingRebalance() // commits in `revoked`, and leaves the group
}

func placesOf(partitions map[string][]int32) []pipe.Place {
	places := []pipe.Place{}
	for topic, numbers := range partitions {
		for _, number := range numbers {
			places = append(places, pipe.Place{Topic: topic, Partition: number})
		}
	}
	return places
}

type offsets = map[string]map[int32]kgo.EpochOffset
type onCommit = func(*kgo.Client, *kmsg.OffsetCommitRequest, *kmsg.OffsetCommitResponse, error)

// commitProcessed commits offsets, and reports them when Kafka has accepted them.
func commitProcessed(client *kgo.Client, due map[pipe.Place]int64, commit func(context.Context, offsets, onCommit)) {
	if len(due) == 0 {
		return
	}
	began, wanted := time.Now(), offsets{}
	_, epoch := client.GroupMetadata()
	for place, offset := range due {
		if wanted[place.Topic] == nil {
			wanted[place.Topic] = map[int32]kgo.EpochOffset{}
		}
		wanted[place.Topic][place.Partition] = kgo.EpochOffset{Epoch: -1, Offset: offset}
	}
	commit(background, wanted, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, response *kmsg.OffsetCommitResponse, err error) {
		if err == nil {
			for _, topic := range response.Topics {
				for _, partition := range topic.Partitions {
					if err == nil {
						err = kerr.ErrorForCode(partition.ErrorCode)
					}
				}
			}
		}
		if err != nil {
			pipe.CommitRefused(name(err), err, began)
			return
		}
		pipe.SayCommitted(due, began, "epoch", epoch)
	})
}

// poll reports records until `close`.
func poll(client *kgo.Client, processed *pipe.Processed, orders chan pipe.Order) {
	polling, stop := context.WithCancel(background)
	go func() {
		<-orders
		stop()
	}()
	for polling.Err() == nil {
		wait, cancel := context.WithTimeout(polling, 100*time.Millisecond) // commits are due without records, too
		fetches := client.PollFetches(wait)
		cancel()
		fetches.EachError(func(_ string, _ int32, err error) {
			if wait.Err() == nil {
				pipe.Complain(name(err), err)
			}
		})
		fetches.EachRecord(func(record *kgo.Record) {
			var mark []byte
			for _, header := range record.Headers {
				if header.Key == "aftershock" {
					mark = header.Value
				}
			}
			place := pipe.Place{Topic: record.Topic, Partition: record.Partition}
			processed.Process(pipe.Record{Place: place, Offset: record.Offset, Mark: mark, Size: len(record.Value)},
				"leader_epoch", record.LeaderEpoch)
		})
		commitProcessed(client, processed.Due(), client.CommitOffsets)
		client.AllowRebalance()
	}
}

func commit(start pipe.Start, orders chan pipe.Order) {
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(8, 9) // OffsetCommit of version 10 has ids of topics
	client := open(append(optionsOf(start), kgo.MaxVersions(versions), kgo.RequestRetries(1000), kgo.RetryTimeout(start.Deadline()))...)
	awaitLeaders(client, start)
	pipe.Say("ready")
	pipe.CommitEach(orders, start.Deadline(), func(until context.Context, order pipe.Order) {
		request := kmsg.NewPtrOffsetCommitRequest()
		request.Group = order.Group
		topic, partition := kmsg.NewOffsetCommitRequestTopic(), kmsg.NewOffsetCommitRequestTopicPartition()
		topic.Topic, partition.Partition, partition.Offset = start.Topic, order.Partition, order.Offset
		topic.Partitions = append(topic.Partitions, partition)
		request.Topics = append(request.Topics, topic)
		for {
			response, err := request.RequestWith(until, client)
			if err == nil {
				err = kerr.ErrorForCode(response.Topics[0].Partitions[0].ErrorCode)
			}
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

// hooks counts the bytes of each broker.
type hooks struct{}

func (hooks) OnBrokerWrite(meta kgo.BrokerMetadata, _ int16, size int, _, _ time.Duration, _ error) {
	traffic.Add(meta.NodeID, size, 0)
}

func (hooks) OnBrokerRead(meta kgo.BrokerMetadata, _ int16, size int, _, _ time.Duration, _ error) {
	traffic.Add(meta.NodeID, 0, size)
}
