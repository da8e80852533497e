// Command kafka_go is a client of docs/EXEC.md built on github.com/segmentio/kafka-go.
package main

import (
	"context"
	"errors"
	"net"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"aftershock/clients/pipe"

	"github.com/segmentio/kafka-go"
)

// settings that an arm can have
var settings struct {
	SessionTimeoutMs int64 `json:"session.timeout.ms"`
	HeartbeatMs      int64 `json:"heartbeat.interval.ms"`
}

const backoff = 100 * time.Millisecond

var background = context.Background()

func main() {
	pipe.Program{
		Module:   "github.com/segmentio/kafka-go",
		Settings: &settings,
		Lacks: map[string]string{
			"idempotence":  "kafka-go has no idempotent producer",
			"transactions": "kafka-go has no transactional producer",
			"pattern":      "kafka-go has no subscription to a pattern",
			"protocol":     "kafka-go has no consumer protocol (KIP-848)",
			"assignor":     "the program around kafka-go uses the library's own assignors",
			"static":       "kafka-go has no static members (KIP-345)",
		},
		Ops: map[string]func(pipe.Start, chan pipe.Order){"produce": produce, "consume": consume, "commit": commit},
	}.Run()
}

// connection is the way to the brokers, with the bytes of each.
type connection struct {
	addresses []string
	client    *kafka.Client
	dialer    *kafka.Dialer
	transport *kafka.Transport
	traffic   pipe.Traffic
	lock      sync.Mutex
	brokers   map[string]int32 // by address
}

func connect(start pipe.Start) *connection {
	own := &connection{addresses: strings.Split(start.Bootstrap, ","), brokers: map[string]int32{}}
	own.transport = &kafka.Transport{Dial: own.dial, DialTimeout: 2 * time.Second, ClientID: start.ClientID, MetadataTTL: time.Second}
	own.dialer = &kafka.Dialer{ClientID: start.ClientID, Timeout: 2 * time.Second, DialFunc: own.dial}
	own.client = &kafka.Client{Addr: kafka.TCP(own.addresses...), Transport: own.transport, Timeout: 10 * time.Second}
	own.awaitLeaders(start)
	go own.traffic.Report()
	return own
}

func (own *connection) dial(until context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(until, network, address)
	if err != nil {
		return nil, err
	}
	return &counted{conn, own, address}, nil
}

// counted is a connection whose bytes count for the broker of its address.
type counted struct {
	net.Conn
	own     *connection
	address string
}

func (conn *counted) count(sent, received int) {
	conn.own.lock.Lock()
	broker, known := conn.own.brokers[conn.address]
	conn.own.lock.Unlock()
	if known {
		conn.own.traffic.Add(broker, sent, received)
	}
}

func (conn *counted) Write(content []byte) (int, error) {
	length, err := conn.Conn.Write(content)
	conn.count(length, 0)
	return length, err
}

func (conn *counted) Read(content []byte) (int, error) {
	length, err := conn.Conn.Read(content)
	conn.count(0, length)
	return length, err
}

// awaitLeaders returns when each partition of the topics has a leader.
func (own *connection) awaitLeaders(start pipe.Start) {
	for _, topic := range start.Topics {
		for led := int32(0); led < topic.Partitions; time.Sleep(backoff) {
			led = 0
			metadata, err := own.client.Metadata(background, &kafka.MetadataRequest{Topics: []string{topic.Name}})
			if err != nil {
				complain(err)
				continue
			}
			own.lock.Lock()
			for _, broker := range metadata.Brokers {
				own.brokers[net.JoinHostPort(broker.Host, strconv.Itoa(broker.Port))] = int32(broker.ID)
			}
			own.lock.Unlock()
			for _, known := range metadata.Topics {
				for _, partition := range known.Partitions {
					if partition.Error == nil && partition.Leader.Host != "" {
						led++
					}
				}
			}
		}
	}
}

func nameOf(err error) string {
	var code kafka.Error
	switch {
	case errors.As(err, &code):
		return pipe.ErrorName(int(code))
	case errors.Is(err, context.DeadlineExceeded):
		return "_TIMED_OUT"
	}
	return "_TRANSPORT"
}

func complain(err error) { pipe.Complain(nameOf(err), err) }

func produce(start pipe.Start, orders chan pipe.Order) {
	own := connect(start)
	writer := &kafka.Writer{
		Addr:            own.client.Addr,
		Transport:       own.transport,
		Balancer:        kafka.Murmur2Balancer{},
		MaxAttempts:     int(start.Deadline()/backoff) + 1, // kafka-go has no deadline of a record
		WriteBackoffMin: backoff,
		WriteBackoffMax: backoff,
		BatchTimeout:    max(time.Millisecond, time.Duration(start.LingerMs)*time.Millisecond),
		RequiredAcks:    map[string]kafka.RequiredAcks{"all": kafka.RequireAll, "1": kafka.RequireOne, "0": kafka.RequireNone}[start.Acks],
		Async:           true,
		Completion: func(messages []kafka.Message, err error) {
			for _, message := range messages {
				switch seq := message.HighWaterMark; {
				case err != nil:
					fail(seq, err)
				case start.Acks == "0":
					pipe.Acked(seq, "partition", message.Partition)
				default:
					pipe.Acked(seq, "partition", message.Partition, "offset", message.Offset)
				}
			}
		},
	}
	queue := make(chan kafka.Message, 10_000) // a write waits for metadata
	go func() {
		for message := range queue {
			if err := writer.WriteMessages(background, message); err != nil {
				fail(message.HighWaterMark, err)
			}
		}
	}()
	pipe.Say("ready", "accepts", []string{"topics"})
	for order := range orders {
		// a writer returns this field of a reader as it was; older releases have no WriterData
		message := kafka.Message{Topic: order.Topic, Key: order.Key, Value: order.Value, HighWaterMark: order.Seq}
		for _, header := range order.Headers {
			message.Headers = append(message.Headers, kafka.Header{Key: string(*header[0]), Value: header[1].Bytes()})
		}
		pipe.Offer(queue, message, order.Seq, start.Deadline())
	}
	pipe.AwaitReports()
}

// fail reports an error by its name in Kafka or librdkafka; without `in_doubt`, Kafka's error decides.
func fail(seq int64, err error) {
	var tooLarge kafka.MessageTooLargeError
	var code kafka.Error
	switch {
	case errors.As(err, &tooLarge):
		pipe.Failed(seq, "MESSAGE_TOO_LARGE", "in_doubt", false)
	case errors.As(err, &code):
		pipe.Failed(seq, pipe.ErrorName(int(code)))
	default:
		complain(err)
		pipe.Failed(seq, nameOf(err), "in_doubt", true)
	}
}

// read reports the records of a partition until the context ends.
func (own *connection) read(until context.Context, start pipe.Start, place pipe.Place, offset int64, processed *pipe.Processed) {
	level := kafka.ReadUncommitted
	if start.Isolation == "read_committed" {
		level = kafka.ReadCommitted
	}
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: own.addresses, Dialer: own.dialer, Topic: place.Topic, Partition: int(place.Partition),
		MinBytes: 1, MaxBytes: 10 << 20, MaxWait: 500 * time.Millisecond, IsolationLevel: level,
		ReadLagInterval: -1, ReadBackoffMin: backoff, ReadBackoffMax: time.Second,
	})
	defer reader.Close()
	pipe.Must(reader.SetOffset(offset))
	for {
		message, err := reader.FetchMessage(until)
		if until.Err() != nil {
			return
		}
		if err != nil {
			complain(err)
			time.Sleep(backoff)
			continue
		}
		var mark []byte
		for _, header := range message.Headers {
			if header.Key == "aftershock" {
				mark = header.Value
			}
		}
		processed.Process(pipe.Record{Place: place, Offset: message.Offset, Mark: mark, Size: len(message.Value)},
			"high_watermark", message.HighWaterMark)
	}
}

func consume(start pipe.Start, orders chan pipe.Order) {
	own := connect(start)
	until, stop := context.WithCancel(background)
	go func() {
		<-orders
		stop()
	}()
	accepts := []string{"isolation", "topics"}
	if start.Group == "" {
		places := []pipe.Place{}
		processed := pipe.NewProcessed(start)
		var readers sync.WaitGroup
		for _, topic := range start.Topics {
			for partition, offset := range topic.Positions {
				place := pipe.Place{Topic: topic.Name, Partition: partition}
				places = append(places, place)
				readers.Add(1)
				go func() {
					defer readers.Done()
					own.read(until, start, place, offset, processed)
				}()
			}
		}
		pipe.SayPartitions("assigned", start, places)
		pipe.Say("ready", "accepts", accepts)
		readers.Wait()
		return
	}
	config := kafka.ConsumerGroupConfig{
		ID: start.Group, Brokers: own.addresses, Topics: start.TopicNames(),
		SessionTimeout: time.Duration(settings.SessionTimeoutMs) * time.Millisecond, HeartbeatInterval: time.Duration(settings.HeartbeatMs) * time.Millisecond,
		JoinGroupBackoff: backoff, RebalanceTimeout: 10 * time.Second,
		StartOffset: map[string]int64{"earliest": kafka.FirstOffset, "latest": kafka.LastOffset}[start.From],
	}
	fields := reflect.ValueOf(&config).Elem()
	for name, value := range map[string]any{"Dialer": own.dialer, "Transport": own.transport} { // 0.4.37 has the second one
		if field := fields.FieldByName(name); field.IsValid() {
			field.Set(reflect.ValueOf(value))
		}
	}
	group, err := kafka.NewConsumerGroup(config)
	pipe.Must(err)
	ready := sync.OnceFunc(func() { pipe.Say("ready", "accepts", accepts) })
	if start.Members > 1 {
		ready() // a member of several may get no partitions
	}
	for until.Err() == nil { // each turn is a generation, until the group rebalances
		generation, err := group.Next(until)
		if err != nil {
			if until.Err() == nil {
				complain(err)
				time.Sleep(backoff)
			}
			continue
		}
		generation.Start(func(over context.Context) { own.generation(over, start, generation, ready) })
	}
	group.Close() // ends the generation, which commits, and leaves the group
}

// generation reads the partitions of a generation, commits, and gives them up when it is over.
func (own *connection) generation(over context.Context, start pipe.Start, generation *kafka.Generation, ready func()) {
	if start.Commits == nil {
		start.Commits = &pipe.Commits{EveryMs: 1_000}
	}
	processed, places := pipe.NewProcessed(start), []pipe.Place{}
	offsets := map[pipe.Place]int64{}
	for topic, assignments := range generation.Assignments {
		for _, assigned := range assignments {
			place := pipe.Place{Topic: topic, Partition: int32(assigned.ID)}
			places, offsets[place] = append(places, place), assigned.Offset
		}
	}
	pipe.SayPartitions("assigned", start, places, "member", generation.MemberID, "epoch", generation.ID)
	ready()
	var readers sync.WaitGroup
	for place, offset := range offsets {
		readers.Add(1)
		go func() {
			defer readers.Done()
			own.read(over, start, place, offset, processed)
		}()
	}
	for over.Err() == nil {
		select {
		case <-over.Done():
		case <-time.After(backoff):
			commitProcessed(generation, processed.Due())
		}
	}
	readers.Wait()
	commitProcessed(generation, processed.Take(places))
	pipe.SayPartitions("revoked", start, places, "epoch", generation.ID)
}

// commitProcessed commits offsets, and reports them when Kafka has accepted them.
func commitProcessed(generation *kafka.Generation, due map[pipe.Place]int64) {
	if len(due) == 0 {
		return
	}
	began, wanted := time.Now(), map[string]map[int]int64{}
	for place, offset := range due {
		if wanted[place.Topic] == nil {
			wanted[place.Topic] = map[int]int64{}
		}
		wanted[place.Topic][int(place.Partition)] = offset
	}
	if err := generation.CommitOffsets(wanted); err != nil {
		pipe.CommitRefused(nameOf(err), err, began)
		return
	}
	pipe.SayCommitted(due, began, "epoch", generation.ID)
}

func commit(start pipe.Start, orders chan pipe.Order) {
	own := connect(start)
	pipe.Say("ready")
	pipe.CommitEach(orders, start.Deadline(), func(until context.Context, order pipe.Order) {
		const generation = -1 // of a group without members
		request := &kafka.OffsetCommitRequest{GroupID: order.Group, GenerationID: generation,
			Topics: map[string][]kafka.OffsetCommit{start.Topic: {{Partition: int(order.Partition), Offset: order.Offset}}}}
		for {
			response, err := own.client.OffsetCommit(until, request)
			if err == nil {
				err = response.Topics[start.Topic][0].Error
			}
			switch {
			case err == nil:
				pipe.Acked(order.Seq)
				return
			case until.Err() != nil:
				fail(order.Seq, err)
				return
			}
			time.Sleep(backoff)
		}
	})
}
