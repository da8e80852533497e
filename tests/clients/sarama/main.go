// Command sarama is a client of docs/EXEC.md built on github.com/IBM/sarama.
package main

import (
	"context"
	"errors"
	"maps"
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
}

const backoff = 100 * time.Millisecond

func main() {
	start, orders := pipe.Open(&settings)
	config := sarama.NewConfig()
	config.ClientID, config.RackID, config.Version = start.ClientID, start.ClientRack, sarama.MaxVersion
	config.Net.DialTimeout = 2 * time.Second
	config.Metadata.Full = false
	go report(config.MetricRegistry)
	map[string]func(pipe.Start, chan pipe.Order, *sarama.Config){"produce": produce, "consume": consume, "commit": commit}[start.Op](start, orders, config)
	pipe.Say("bye")
}

// open returns a client that knows a leader of each partition of the topic.
func open(start pipe.Start, config *sarama.Config) sarama.Client {
	pipe.Must(config.Validate())
	for {
		client, err := sarama.NewClient(strings.Split(start.Bootstrap, ","), config)
		if err == nil {
			if led, err := client.WritablePartitions(start.Topic); err == nil && len(led) >= int(start.Partitions) {
				return client
			}
			client.Close()
		}
		time.Sleep(backoff)
	}
}

func produce(start pipe.Start, orders chan pipe.Order, config *sarama.Config) {
	config.Producer.RequiredAcks = map[string]sarama.RequiredAcks{"all": sarama.WaitForAll, "1": sarama.WaitForLocal, "0": sarama.NoResponse}[start.Acks]
	config.Producer.Idempotent = start.Idempotence
	if start.Idempotence {
		config.Net.MaxOpenRequests = 1
	}
	config.Producer.Return.Successes = true
	config.Producer.Flush.Frequency = time.Duration(start.LingerMs) * time.Millisecond
	config.Producer.Retry.Backoff = backoff
	config.Producer.Retry.Max = int(start.Deadline()/backoff) + 1 // sarama has no deadline of a record
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
	pipe.Say("ready")
	for order := range orders {
		message := &sarama.ProducerMessage{Topic: start.Topic, Value: sarama.ByteEncoder(order.Value), Metadata: order.Seq}
		if order.Key != nil {
			message.Key = sarama.ByteEncoder(order.Key)
		}
		for _, header := range order.Headers {
			message.Headers = append(message.Headers, sarama.RecordHeader{Key: []byte(*header[0]), Value: header[1].Bytes()})
		}
		pipe.Begin(order.Seq, start.Deadline())
		select {
		case queue <- message:
		default:
			pipe.Failed(order.Seq, "_QUEUE_FULL", false)
		}
	}
	pipe.AwaitReports()
}

// fail reports an error by its name in Kafka or librdkafka.
func fail(seq int64, err error) {
	var kafka sarama.KError
	var refused sarama.ConfigurationError
	switch {
	case errors.As(err, &kafka):
		pipe.FailedWith(seq, int16(kafka))
	case errors.As(err, &refused): // a record that is larger than Producer.MaxMessageBytes
		pipe.Failed(seq, "MESSAGE_TOO_LARGE", false)
	case errors.Is(err, context.DeadlineExceeded):
		pipe.Failed(seq, "_MSG_TIMED_OUT", true)
	default:
		pipe.Say("error", "error", "_TRANSPORT", "detail", err.Error())
		pipe.Failed(seq, "_TRANSPORT", true)
	}
}

// group handles the sessions of a group's member.
type group struct {
	topic string
	ready func()
}

func (member group) Setup(session sarama.ConsumerGroupSession) error {
	pipe.Say("assigned", "partitions", append([]int32{}, session.Claims()[member.topic]...), "member", session.MemberID())
	member.ready()
	return nil
}

func (member group) Cleanup(session sarama.ConsumerGroupSession) error {
	pipe.Say("revoked", "partitions", append([]int32{}, session.Claims()[member.topic]...))
	return nil
}

func (member group) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		received(message)
		session.MarkMessage(message, "") // committed each second, and at the end of the session
	}
	return nil
}

func received(message *sarama.ConsumerMessage) {
	var mark []byte
	for _, header := range message.Headers {
		if string(header.Key) == "aftershock" {
			mark = header.Value
		}
	}
	pipe.Say("record", "partition", message.Partition, "offset", message.Offset, "mark", mark, "size_bytes", len(message.Value))
}

func failures(errs <-chan error) {
	for err := range errs {
		pipe.Say("error", "error", "_TRANSPORT", "detail", err.Error())
	}
}

func consume(start pipe.Start, orders chan pipe.Order, config *sarama.Config) {
	config.Consumer.Return.Errors = true
	config.Consumer.Offsets.Initial = map[string]int64{"earliest": sarama.OffsetOldest, "latest": sarama.OffsetNewest}[start.From]
	if settings.SessionTimeoutMs > 0 {
		config.Consumer.Group.Session.Timeout = time.Duration(settings.SessionTimeoutMs) * time.Millisecond
		config.Consumer.Group.Heartbeat.Interval = config.Consumer.Group.Session.Timeout / 3
	}
	client := open(start, config)
	if start.Group == "" {
		consumer, err := sarama.NewConsumerFromClient(client)
		pipe.Must(err)
		pipe.Say("assigned", "partitions", slices.Collect(maps.Keys(start.Positions)))
		for partition, offset := range start.Positions {
			go func() {
				reader, err := consumer.ConsumePartition(start.Topic, partition, offset)
				for ; err != nil; reader, err = consumer.ConsumePartition(start.Topic, partition, offset) {
					time.Sleep(backoff)
				}
				go func() {
					for err := range reader.Errors() {
						pipe.Say("error", "error", "_TRANSPORT", "detail", err.Error())
					}
				}()
				for message := range reader.Messages() {
					received(message)
				}
			}()
		}
		pipe.Say("ready")
		<-orders
		return
	}
	member, err := sarama.NewConsumerGroupFromClient(start.Group, client)
	pipe.Must(err)
	go failures(member.Errors())
	consuming, stop := context.WithCancel(context.Background())
	go func() {
		<-orders
		stop()
	}()
	handler := group{start.Topic, sync.OnceFunc(func() { pipe.Say("ready") })}
	for consuming.Err() == nil { // each turn is a session, until the group rebalances
		if err := member.Consume(consuming, []string{start.Topic}, handler); err != nil && consuming.Err() == nil {
			pipe.Say("error", "error", "_TRANSPORT", "detail", err.Error())
			time.Sleep(backoff)
		}
	}
	member.Close()
}

func commit(start pipe.Start, orders chan pipe.Order, config *sarama.Config) {
	client := open(start, config)
	pipe.Say("ready")
	pipe.Commit(orders, start.Deadline(), func(until context.Context, order pipe.Order) {
		request := sarama.NewOffsetCommitRequest(config, order.Group)
		request.AddBlockWithLeaderEpoch(start.Topic, order.Partition, order.Offset, -1, 0, "")
		for {
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
