package main

import (
	"context"
	"time"

	"aftershock/clients/pipe"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

// producing sends the records of orders, in transactions if the start order has them.
type producing struct {
	start    pipe.Start
	producer *kafka.Producer
}

func produce(start pipe.Start, orders chan pipe.Order) {
	own := &producing{start: start}
	own.open()
	pipe.Say("ready", "accepts", []string{"topics", "transactions"})
	for order := range orders {
		switch order.Do {
		case "send":
			own.send(order)
		case "begin_transaction":
			if err := own.producer.BeginTransaction(); err != nil {
				pipe.Transacted(order.Do, "error", nameOf(err), "in_doubt", false)
			} else {
				pipe.Transacted(order.Do)
			}
		case "commit_transaction":
			own.end(order.Do, own.producer.CommitTransaction)
		case "abort_transaction":
			own.end(order.Do, own.producer.AbortTransaction)
		case "reopen_producer":
			own.producer.Purge(kafka.PurgeInFlight | kafka.PurgeQueue)
			pipe.AwaitReports()
			own.producer.Close()
			own.open()
			pipe.Transacted(order.Do)
		}
	}
	if start.Transaction != nil {
		own.producer.Purge(kafka.PurgeInFlight | kafka.PurgeQueue)
	}
	pipe.AwaitReports()
}

// open opens a producer, and waits until it can send its first record.
func (own *producing) open() {
	config := kafka.ConfigMap{
		"acks":                own.start.Acks,
		"enable.idempotence":  own.start.Idempotence,
		"linger.ms":           int(own.start.LingerMs),
		"delivery.timeout.ms": int(own.start.DeadlineMs),
	}
	if transaction := own.start.Transaction; transaction != nil {
		config["transactional.id"], config["transaction.timeout.ms"] = transaction.ID, int(transaction.TimeoutMs)
		config["delivery.timeout.ms"] = int(min(own.start.DeadlineMs, transaction.TimeoutMs))
	}
	config = configOf(own.start, config)
	producer, err := kafka.NewProducer(&config)
	pipe.Must(err)
	own.producer = producer
	go own.report(producer)
	awaitLeaders(producer, own.start)
	for own.start.Transaction != nil {
		until, cancel := context.WithTimeout(context.Background(), own.start.Deadline())
		err := producer.InitTransactions(until)
		cancel()
		if err == nil {
			return
		}
		if failure, ok := err.(kafka.Error); ok && failure.IsFatal() {
			pipe.Must(err)
		}
		complain(err)
		time.Sleep(50 * time.Millisecond)
	}
}

// report reports the results of records until the producer is closed.
func (own *producing) report(producer *kafka.Producer) {
	for event := range producer.Events() {
		message, isReport := event.(*kafka.Message)
		if !isReport {
			serve(event)
			continue
		}
		seq, place := message.Opaque.(int64), message.TopicPartition
		switch {
		case place.Error != nil:
			pipe.Failed(seq, nameOf(place.Error)) // the error decides whether the record is in doubt
		case own.start.Acks == "0":
			pipe.Acked(seq, "partition", place.Partition)
		default:
			pipe.Acked(seq, "partition", place.Partition, "offset", place.Offset)
		}
	}
}

func (own *producing) send(order pipe.Order) {
	message := &kafka.Message{
		TopicPartition: kafka.TopicPartition{Topic: &order.Topic, Partition: kafka.PartitionAny},
		Key:            order.Key,
		Value:          order.Value,
		Opaque:         order.Seq,
	}
	for _, header := range order.Headers {
		message.Headers = append(message.Headers, kafka.Header{Key: string(*header[0]), Value: header[1].Bytes()})
	}
	pipe.Begin(order.Seq, own.start.Deadline()+2*time.Second) // librdkafka keeps the deadline, and looks once a second
	if err := own.producer.Produce(message, nil); err != nil {
		pipe.Failed(order.Seq, nameOf(err), "in_doubt", false)
	}
}

func (own *producing) end(order string, end func(context.Context) error) {
	until, cancel := context.WithTimeout(context.Background(), own.start.Deadline())
	defer cancel()
	err := end(until)
	failure, _ := err.(kafka.Error)
	switch {
	case err == nil:
		pipe.Transacted(order)
	case failure.TxnRequiresAbort():
		pipe.Transacted(order, "error", nameOf(err), "then", "abort")
	case failure.IsRetriable() && !failure.IsFatal():
		pipe.Transacted(order, "error", nameOf(err), "then", "repeat")
	default:
		pipe.Transacted(order, "error", nameOf(err), "then", "reopen", "in_doubt", true)
	}
}
