package main

import (
	"context"
	"time"

	"aftershock/clients/pipe"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

// consuming reports the records of a consumer.
type consuming struct {
	start     pipe.Start
	consumer  *kafka.Consumer
	processed *pipe.Processed
	isReady   bool
}

func consume(start pipe.Start, orders chan pipe.Order) {
	config := kafka.ConfigMap{
		"group.id":           start.Group,
		"enable.auto.commit": start.Group != "" && start.Commits == nil,
		"auto.offset.reset":  start.From,
	}
	if start.Group == "" {
		config["group.id"] = start.ClientID // librdkafka requires one
	}
	for name, value := range map[string]string{
		"group.protocol": start.GroupProtocol, "group.instance.id": start.InstanceID, "isolation.level": start.Isolation} {
		if value != "" {
			config[name] = value
		}
	}
	if start.Assignor != "" && start.GroupProtocol == "consumer" {
		config["group.remote.assignor"] = start.Assignor
	} else if start.Assignor != "" {
		config["partition.assignment.strategy"] = start.Assignor
	}
	config = configOf(start, config)
	consumer, err := kafka.NewConsumer(&config)
	pipe.Must(err)
	own := &consuming{start: start, consumer: consumer, processed: pipe.NewProcessed(start)}
	if start.Group == "" {
		own.assign()
	} else {
		// a name that begins with ^ is a pattern, which need not match the whole name of a topic
		names := start.TopicNames()
		if start.Pattern != "" {
			names = []string{"^(" + start.Pattern + ")$"}
		}
		pipe.Must(consumer.SubscribeTopics(names, own.rebalanced))
		if start.Members > 1 {
			own.ready() // a member of several may get no partitions
		}
	}
	committing := make(chan struct{}, 1) // one commit at a time
	for {
		select {
		case <-orders: // a consumer has no order but `close`
			consumer.Close() // revokes, which commits, and leaves the group
			return
		default:
		}
		if message, isRecord := own.poll(); isRecord {
			own.process(message)
		}
		if len(committing) > 0 {
			continue
		}
		if due := own.processed.Due(); len(due) > 0 {
			committing <- struct{}{}
			go func() {
				own.commit(due)
				<-committing
			}()
		}
	}
}

func (own *consuming) ready() {
	if !own.isReady {
		own.isReady = true
		pipe.Say("ready", "accepts", []string{"isolation", "topics"})
	}
}

// assign reads every partition from the start offsets.
func (own *consuming) assign() {
	var starts []kafka.TopicPartition
	for _, topic := range own.start.Topics {
		for partition, offset := range topic.Positions {
			starts = append(starts, kafka.TopicPartition{Topic: &topic.Name, Partition: partition, Offset: kafka.Offset(offset)})
		}
	}
	pipe.Must(own.consumer.Assign(starts))
	pipe.SayPartitions("assigned", own.start, placesOf(starts))
	own.ready()
}

func placesOf(partitions []kafka.TopicPartition) []pipe.Place {
	places := []pipe.Place{}
	for _, partition := range partitions {
		places = append(places, pipe.Place{Topic: *partition.Topic, Partition: partition.Partition})
	}
	return places
}

// rebalanced reports what is assigned and revoked; librdkafka then assigns by itself.
func (own *consuming) rebalanced(consumer *kafka.Consumer, event kafka.Event) error {
	switch event := event.(type) {
	case kafka.AssignedPartitions:
		pipe.SayPartitions("assigned", own.start, placesOf(event.Partitions))
		own.ready()
	case kafka.RevokedPartitions:
		places := placesOf(event.Partitions)
		due := own.processed.Take(places)
		if consumer.AssignmentLost() {
			pipe.SayPartitions("lost", own.start, places)
			return nil
		}
		own.commit(due)
		pipe.SayPartitions("revoked", own.start, places)
	}
	return nil
}

// poll returns the next record, if there is one.
func (own *consuming) poll() (*kafka.Message, bool) {
	event := own.consumer.Poll(100)
	message, isMessage := event.(*kafka.Message)
	if event == nil || !isMessage {
		serve(event)
		return nil, false
	}
	if message.TopicPartition.Error != nil {
		complain(message.TopicPartition.Error)
		return nil, false
	}
	return message, true
}

func (own *consuming) process(message *kafka.Message) {
	var mark []byte
	for _, header := range message.Headers {
		if header.Key == "aftershock" {
			mark = header.Value
		}
	}
	place := pipe.Place{Topic: *message.TopicPartition.Topic, Partition: message.TopicPartition.Partition}
	own.processed.Process(pipe.Record{
		Place: place, Offset: int64(message.TopicPartition.Offset), Mark: mark, Size: len(message.Value)})
}

// commit commits offsets, and reports them when Kafka has accepted them.
func (own *consuming) commit(due map[pipe.Place]int64) {
	if len(due) == 0 {
		return
	}
	began, offsets := time.Now(), []kafka.TopicPartition{}
	for place, offset := range due {
		offsets = append(offsets, kafka.TopicPartition{Topic: &place.Topic, Partition: place.Partition, Offset: kafka.Offset(offset)})
	}
	results, err := own.consumer.CommitOffsets(offsets)
	for _, result := range results {
		if result.Error != nil {
			err = result.Error
		}
	}
	if err != nil {
		pipe.CommitRefused(nameOf(err), err, began)
		return
	}
	pipe.SayCommitted(due, began)
}

// commit commits for each group with a consumer of its own, which reads nothing: that works with every version.
func commit(start pipe.Start, orders chan pipe.Order) {
	consumers := map[string]*kafka.Consumer{}
	for _, group := range start.Groups {
		config := configOf(start, kafka.ConfigMap{"group.id": group, "enable.auto.commit": false})
		consumer, err := kafka.NewConsumer(&config)
		pipe.Must(err)
		consumers[group] = consumer
		go func() {
			for {
				serve(consumer.Poll(1000))
			}
		}()
		awaitLeaders(consumer, start)
	}
	pipe.Say("ready")
	pipe.CommitEach(orders, start.Deadline(), func(until context.Context, order pipe.Order) {
		place := kafka.TopicPartition{Topic: &start.Topic, Partition: order.Partition, Offset: kafka.Offset(order.Offset)}
		for {
			results, err := consumers[order.Group].CommitOffsets([]kafka.TopicPartition{place})
			if err == nil && results[0].Error != nil {
				err = results[0].Error
			}
			switch {
			case err == nil:
				pipe.Acked(order.Seq)
				return
			case until.Err() != nil:
				pipe.Failed(order.Seq, nameOf(err))
				return
			}
			time.Sleep(100 * time.Millisecond) // librdkafka gives a commit up while it knows no coordinator
		}
	})
}
