// Command librdkafka is a client of docs/EXEC.md built on librdkafka, which github.com/confluentinc/confluent-kafka-go
// contains; version 1 of that module lacks the part /v2 of its path.
package main

import (
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"aftershock/clients/pipe"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

var (
	settings  map[string]any
	traffic   pipe.Traffic
	reporting sync.Once
)

func main() {
	pipe.Program{
		Version:  func() string { _, version := kafka.LibraryVersion(); return version },
		Settings: &settings,
		Check:    func() error { return tried(kafka.ConfigMap{}) },
		Lacks:    lacks(),
		Ops:      map[string]func(pipe.Start, chan pipe.Order){"produce": produce, "consume": consume, "commit": commit},
	}.Run()
}

// lacks returns what this version lacks.
func lacks() map[string]string {
	missing := map[string]string{}
	if err := tried(kafka.ConfigMap{"group.protocol": "consumer"}); err != nil {
		missing["protocol"] = "this version of librdkafka has no consumer protocol (KIP-848)"
	}
	return missing
}

// tried returns why librdkafka refuses a configuration, which a consumer takes whole: settings of producers are ignored.
func tried(own kafka.ConfigMap) error {
	config := configOf(pipe.Start{Bootstrap: "127.0.0.1:1", ClientID: "describe"}, own)
	config["group.id"], config["log_level"] = "describe", 0
	delete(config, "statistics.interval.ms")
	consumer, err := kafka.NewConsumer(&config)
	if err == nil {
		consumer.Close()
	}
	return err
}

// configOf returns a configuration: the arm's settings, which `own` and the start order precede.
func configOf(start pipe.Start, own kafka.ConfigMap) kafka.ConfigMap {
	config := kafka.ConfigMap{"statistics.interval.ms": 1000}
	for name, value := range settings {
		if number, isNumber := value.(float64); isNumber {
			value = fmt.Sprint(number) // librdkafka's integers
			if number == float64(int64(number)) {
				value = fmt.Sprint(int64(number))
			}
		}
		config[name] = value
	}
	for name, value := range own {
		config[name] = value
	}
	config["bootstrap.servers"], config["client.id"] = start.Bootstrap, start.ClientID
	if start.ClientRack != "" {
		config["client.rack"] = start.ClientRack
	}
	reporting.Do(func() { go traffic.Report() })
	return config
}

type described interface {
	GetMetadata(topic *string, all bool, timeoutMs int) (*kafka.Metadata, error)
}

// awaitLeaders returns when each partition of the topics has a leader.
func awaitLeaders(client described, start pipe.Start) {
	for _, topic := range start.Topics {
		for led := int32(0); led < topic.Partitions; time.Sleep(50 * time.Millisecond) {
			led = 0
			metadata, err := client.GetMetadata(&topic.Name, false, 2000)
			if err != nil {
				complain(err)
				continue
			}
			for _, partition := range metadata.Topics[topic.Name].Partitions {
				if partition.Leader >= 0 {
					led++
				}
			}
		}
	}
}

func nameOf(err error) string {
	if own, ok := err.(kafka.Error); ok {
		return pipe.ErrorName(int(own.Code()))
	}
	return "_FAIL"
}

func complain(err error) { pipe.Complain(nameOf(err), err) }

var (
	serving sync.Mutex
	counted = map[string]int64{} // disconnections and time-outs by broker, so far
)

// serve handles an event that every kind of client gets; it returns false for any other.
func serve(event kafka.Event) bool {
	serving.Lock()
	defer serving.Unlock()
	switch event := event.(type) {
	case kafka.Error:
		complain(event)
	case *kafka.Stats:
		var statistics struct {
			Brokers map[string]struct {
				NodeID      int32 `json:"nodeid"`
				Sent        int64 `json:"txbytes"`
				Received    int64 `json:"rxbytes"`
				Disconnects int64 `json:"disconnects"`
				TimeOuts    int64 `json:"req_timeouts"`
			} `json:"brokers"`
		}
		pipe.Must(json.Unmarshal([]byte(event.String()), &statistics))
		totals := map[int32][2]int64{}
		for name, broker := range statistics.Brokers {
			if broker.NodeID < 0 { // a bootstrap address
				continue
			}
			both := totals[broker.NodeID] // a coordinator has a connection of its own, with the same node id
			totals[broker.NodeID] = [2]int64{both[0] + broker.Sent, both[1] + broker.Received}
			for report, count := range map[string]int64{"node_disconnected": broker.Disconnects, "request_timed_out": broker.TimeOuts} {
				if count > counted[name+report] {
					pipe.SayTimed(report, "broker", broker.NodeID)
				}
				counted[name+report] = count
			}
		}
		traffic.Set(totals)
	default:
		return false
	}
	return true
}
