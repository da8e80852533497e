// Command sarama is a client of docs/EXEC.md built on github.com/IBM/sarama.
package main

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"aftershock/clients/pipe"

	"github.com/IBM/sarama"
	"github.com/rcrowley/go-metrics"
)

// settings that an arm can have
var settings struct {
	SessionTimeoutMs int64 `json:"session.timeout.ms"`
	HeartbeatMs      int64 `json:"heartbeat.interval.ms"`
	MetadataMaxAgeMs int64 `json:"metadata.max.age.ms"`
	RetryMax         int   `json:"producer.retry.max"`
}

const backoff = 100 * time.Millisecond

func main() {
	pipe.Program{
		Module:   "github.com/IBM/sarama",
		Settings: &settings,
		Lacks: map[string]string{
			"pattern":      "sarama has no subscription to a pattern",
			"protocol":     "sarama has no consumer protocol (KIP-848)",
			"transactions": "the program around sarama does not produce in transactions",
		},
		Ops: map[string]func(pipe.Start, chan pipe.Order){"produce": produce, "consume": consume, "commit": commit},
	}.Run()
}

func configOf(start pipe.Start) *sarama.Config {
	config := sarama.NewConfig()
	config.ClientID, config.RackID, config.Version = start.ClientID, start.ClientRack, sarama.MaxVersion
	config.Net.DialTimeout = 2 * time.Second
	config.Metadata.Full = false
	if settings.MetadataMaxAgeMs > 0 {
		config.Metadata.RefreshFrequency = time.Duration(settings.MetadataMaxAgeMs) * time.Millisecond
	}
	go report(config.MetricRegistry)
	return config
}

// open returns a client that knows a leader of each partition of the topics.
func open(start pipe.Start, config *sarama.Config) sarama.Client {
	pipe.Must(config.Validate())
	for ; ; time.Sleep(backoff) {
		client, err := sarama.NewClient(strings.Split(start.Bootstrap, ","), config)
		if err != nil {
			continue
		}
		if !slices.ContainsFunc(start.Topics, func(topic pipe.Topic) bool {
			led, err := client.WritablePartitions(topic.Name)
			return err != nil || len(led) < int(topic.Partitions)
		}) {
			return client
		}
		client.Close()
	}
}

func produce(start pipe.Start, orders chan pipe.Order) {
	config := configOf(start)
	config.Producer.RequiredAcks = map[string]sarama.RequiredAcks{"all": sarama.WaitForAll, "1": sarama.WaitForLocal, "0": sarama.NoResponse}[start.Acks]
	config.Producer.Idempotent = start.Idempotence
	if start.Idempotence {
		config.Net.MaxOpenRequests = 1
	}
	config.Producer.Return.Successes = true
	config.Producer.Flush.Frequency = time.Duration(start.LingerMs) * time.Millisecond
	config.Producer.Retry.Backoff = backoff
	config.Producer.Retry.Max = int(start.Deadline()/backoff) + 1 // sarama has no deadline of a record
	if settings.RetryMax > 0 {
		config.Producer.Retry.Max = settings.RetryMax
	}
	client := open(start, config)
	producer, err := sarama.NewAsyncProducerFromClient(client)
	pipe.Must(err)
	go func() {
		for message := range producer.Successes() {
			if start.Acks == "0" {
				pipe.Acked(message.Metadata.(int64), "partition", message.Partition)
			} else {
				pipe.Acked(message.Metadata.(int64), "partition", message.Partition, "offset", message.Offset)
			}
		}
	}()
	go func() {
		for failure := range producer.Errors() {
			fail(failure.Msg.Metadata.(int64), failure.Err)
		}
	}()
	queue := make(chan *sarama.ProducerMessage, 10_000) // the producer's input blocks while partitions have no leader
	go func() {
		for message := range queue {
			producer.Input() <- message
		}
	}()
	pipe.Say("ready", "accepts", []string{"topics"})
	for order := range orders {
		message := &sarama.ProducerMessage{Topic: order.Topic, Value: sarama.ByteEncoder(order.Value), Metadata: order.Seq}
		if order.Key != nil {
			message.Key = sarama.ByteEncoder(order.Key)
		}
		for _, header := range order.Headers {
			message.Headers = append(message.Headers, sarama.RecordHeader{Key: []byte(*header[0]), Value: header[1].Bytes()})
		}
		pipe.Offer(queue, message, order.Seq, start.Deadline())
	}
	pipe.AwaitReports()
}

// fail reports an error by its name in Kafka or librdkafka; without `in_doubt`, Kafka's error decides.
func fail(seq int64, err error) {
	var kafka sarama.KError
	var refused sarama.ConfigurationError
	switch {
	case errors.As(err, &kafka):
		pipe.Failed(seq, pipe.ErrorName(int(kafka)))
	case errors.As(err, &refused): // a record that is larger than Producer.MaxMessageBytes
		pipe.Failed(seq, "MESSAGE_TOO_LARGE", "in_doubt", false)
	case errors.Is(err, context.DeadlineExceeded):
		pipe.Failed(seq, "_MSG_TIMED_OUT", "in_doubt", true)
	default:
		pipe.Complain("_TRANSPORT", err)
		pipe.Failed(seq, "_TRANSPORT", "in_doubt", true)
	}
}

func complain(err error) {
	var kafka sarama.KError
	if errors.As(err, &kafka) {
		pipe.Complain(pipe.ErrorName(int(kafka)), err)
	} else {
		pipe.Complain("_TRANSPORT", err)
	}
}

// member handles the sessions of a group's member.
type member struct {
	start     pipe.Start
	processed *pipe.Processed
	ready     func()
}

func (own member) Setup(session sarama.ConsumerGroupSession) error {
	pipe.SayPartitions("assigned", own.start, placesOf(session), "member", session.MemberID(), "epoch", session.GenerationID())
	own.ready()
	return nil
}

func (own member) Cleanup(session sarama.ConsumerGroupSession) error {
	if own.start.Commits != nil {
		session.Commit()
	}
	own.processed.Take(placesOf(session))
	pipe.SayPartitions("revoked", own.start, placesOf(session))
	return nil
}

func placesOf(session sarama.ConsumerGroupSession) []pipe.Place {
	places := []pipe.Place{}
	for topic, numbers := range session.Claims() {
		for _, number := range numbers {
			places = append(places, pipe.Place{Topic: topic, Partition: number})
		}
	}
	return places
}

func (own member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		received(own.processed, message)
		session.MarkMessage(message, "") // committed each second by default, and at the end of the session
		if due := own.processed.Due(); len(due) > 0 {
			session.Commit() // does not tell whether Kafka has accepted the commit
		}
	}
	return nil
}

func received(processed *pipe.Processed, message *sarama.ConsumerMessage) {
	var mark []byte
	for _, header := range message.Headers {
		if string(header.Key) == "aftershock" {
			mark = header.Value
		}
	}
	place := pipe.Place{Topic: message.Topic, Partition: message.Partition}
	processed.Process(pipe.Record{Place: place, Offset: message.Offset, Mark: mark, Size: len(message.Value)})
}

func consume(start pipe.Start, orders chan pipe.Order) {
	config := configOf(start)
	config.Consumer.Return.Errors = true
	config.Consumer.Offsets.Initial = map[string]int64{"earliest": sarama.OffsetOldest, "latest": sarama.OffsetNewest}[start.From]
	if start.Isolation == "read_committed" {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	if settings.SessionTimeoutMs > 0 {
		config.Consumer.Group.Session.Timeout = time.Duration(settings.SessionTimeoutMs) * time.Millisecond
		config.Consumer.Group.Heartbeat.Interval = config.Consumer.Group.Session.Timeout / 3
	}
	if settings.HeartbeatMs > 0 {
		config.Consumer.Group.Heartbeat.Interval = time.Duration(settings.HeartbeatMs) * time.Millisecond
	}
	config.Consumer.Group.InstanceId = start.InstanceID
	if start.Commits != nil {
		config.Consumer.Offsets.AutoCommit.Enable = false
	}
	if start.Assignor != "" {
		strategy := map[string]sarama.BalanceStrategy{"range": sarama.NewBalanceStrategyRange(),
			"roundrobin": sarama.NewBalanceStrategyRoundRobin(), "sticky": sarama.NewBalanceStrategySticky()}[start.Assignor]
		if strategy == nil {
			pipe.Must(errors.New("sarama has no assignor " + start.Assignor + "; use range, roundrobin or sticky"))
		}
		config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategy}
	}
	client := open(start, config)
	accepts := []string{"isolation", "topics"}
	processed := pipe.NewProcessed(start)
	if start.Group == "" {
		consumer, err := sarama.NewConsumerFromClient(client)
		pipe.Must(err)
		places := []pipe.Place{}
		for _, topic := range start.Topics {
			for partition, offset := range topic.Positions {
				places = append(places, pipe.Place{Topic: topic.Name, Partition: partition})
				go read(consumer, topic.Name, partition, offset, processed)
			}
		}
		pipe.SayPartitions("assigned", start, places)
		pipe.Say("ready", "accepts", accepts)
		<-orders
		return
	}
	group, err := sarama.NewConsumerGroupFromClient(start.Group, client)
	pipe.Must(err)
	go func() {
		for err := range group.Errors() {
			complain(err)
		}
	}()
	consuming, stop := context.WithCancel(context.Background())
	go func() {
		<-orders
		stop()
	}()
	handler := member{start, processed, sync.OnceFunc(func() { pipe.Say("ready", "accepts", accepts) })}
	if start.Members > 1 {
		handler.ready() // a member of several may get no partitions
	}
	for consuming.Err() == nil { // each turn is a session, until the group rebalances
		if err := group.Consume(consuming, start.TopicNames(), handler); err != nil && consuming.Err() == nil {
			complain(err)
			time.Sleep(backoff)
		}
	}
	group.Close()
}

// read reports the records of a partition that belongs to no group.
func read(consumer sarama.Consumer, topic string, partition int32, offset int64, processed *pipe.Processed) {
	reader, err := consumer.ConsumePartition(topic, partition, offset)
	for ; err != nil; reader, err = consumer.ConsumePartition(topic, partition, offset) {
		time.Sleep(backoff)
	}
	go func() {
		for err := range reader.Errors() {
			complain(err)
		}
	}()
	for message := range reader.Messages() {
		received(processed, message)
	}
}

func commit(start pipe.Start, orders chan pipe.Order) {
	client := open(start, configOf(start))
	pipe.Say("ready")
	pipe.CommitEach(orders, start.Deadline(), func(until context.Context, order pipe.Order) {
		const version, generation = 2, -1 // of a group without members
		for {
			request := &sarama.OffsetCommitRequest{
				ConsumerGroup: order.Group, ConsumerGroupGeneration: generation, RetentionTime: -1, Version: version}
			request.AddBlock(start.Topic, order.Partition, order.Offset, -1, "")
			coordinator, err := client.Coordinator(order.Group)
			if err == nil {
				var response *sarama.OffsetCommitResponse
				if response, err = coordinator.CommitOffset(request); err != nil {
					coordinator.Close()
				} else if code := response.Errors[start.Topic][order.Partition]; code != sarama.ErrNoError {
					err = code
				}
			}
			if err == nil {
				pipe.Acked(order.Seq)
				return
			}
			if until.Err() != nil {
				fail(order.Seq, err)
				return
			}
			time.Sleep(backoff)
			client.RefreshCoordinator(order.Group)
		}
	})
}

// report reports the bytes sent to and received from each broker, by sarama's metrics.
func report(registry metrics.Registry) {
	for range time.Tick(time.Second) {
		totals := map[int][2]int64{}
		registry.Each(func(name string, metric any) {
			direction, number, _ := strings.Cut(name, "-byte-rate-for-broker-")
			broker, err := strconv.Atoi(number)
			column := slices.Index([]string{"outgoing", "incoming"}, direction)
			if err == nil && broker >= 0 && column >= 0 {
				both := totals[broker]
				both[column] = metric.(metrics.Meter).Count()
				totals[broker] = both
			}
		})
		pipe.Say("traffic", "brokers", totals)
	}
}
