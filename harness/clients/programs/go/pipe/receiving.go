package pipe

import (
	"sync"
	"time"
)

// Place is a partition of a topic.
type Place struct {
	Topic     string
	Partition int32
}

// Record is a record that the library has delivered.
type Record struct {
	Place
	Offset int64
	Mark   []byte // value of the header `aftershock`
	Size   int
}

// Processed keeps what a consumer has processed and not committed.
type Processed struct {
	start     Start
	lock      sync.Mutex
	offsets   map[Place]int64
	records   int64
	committed time.Time
}

// NewProcessed returns the state of a consumer that has processed nothing.
func NewProcessed(start Start) *Processed {
	return &Processed{start: start, offsets: map[Place]int64{}, committed: time.Now()}
}

// Process takes the time of processing, and reports the record.
func (processed *Processed) Process(record Record, details ...any) {
	time.Sleep(time.Duration(processed.start.ProcessingMs) * time.Millisecond)
	SayTimed("record", append(details, "topic", record.Topic, "partition", record.Partition, "offset", record.Offset,
		"mark", record.Mark, "size_bytes", record.Size)...)
	processed.lock.Lock()
	defer processed.lock.Unlock()
	processed.offsets[record.Place] = record.Offset + 1
	processed.records++
}

// Due returns and forgets the offsets to commit, if a commit is due by the order's schedule.
func (processed *Processed) Due() map[Place]int64 {
	processed.lock.Lock()
	defer processed.lock.Unlock()
	commits := processed.start.Commits
	if commits == nil || len(processed.offsets) == 0 {
		return nil
	}
	late := commits.EveryMs > 0 && time.Since(processed.committed) >= time.Duration(commits.EveryMs)*time.Millisecond
	enough := commits.EveryRecords > 0 && processed.records >= commits.EveryRecords
	if !late && !enough {
		return nil
	}
	due := processed.offsets
	processed.offsets, processed.records, processed.committed = map[Place]int64{}, 0, time.Now()
	return due
}

// Take returns and forgets the offsets of partitions that are given up; none if the library commits by itself.
func (processed *Processed) Take(places []Place) map[Place]int64 {
	processed.lock.Lock()
	defer processed.lock.Unlock()
	taken := map[Place]int64{}
	for _, place := range places {
		if offset, known := processed.offsets[place]; known && processed.start.Commits != nil {
			taken[place] = offset
		}
		delete(processed.offsets, place)
	}
	return taken
}

// CommitRefused reports a commit that was sent at `began` and failed, and whether the coordinator knows the member no more.
func CommitRefused(name string, err error, began time.Time) {
	Complain(name, err)
	switch name {
	case "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID", "FENCED_MEMBER_EPOCH":
		SayTimed("member_fenced", "error", name, "took_us", time.Since(began).Microseconds())
	}
}

// SayCommitted reports offsets that Kafka has accepted, of a commit that was sent at `began`.
func SayCommitted(offsets map[Place]int64, began time.Time, details ...any) {
	topics := map[string]map[int32]int64{}
	for place, offset := range offsets {
		if topics[place.Topic] == nil {
			topics[place.Topic] = map[int32]int64{}
		}
		topics[place.Topic][place.Partition] = offset
	}
	for topic, numbers := range topics {
		SayTimed("committed", append(details, "topic", topic, "offsets", numbers,
			"took_us", time.Since(began).Microseconds())...)
	}
}

// SayPartitions reports partitions as `assigned`, `revoked` or `lost`, each topic of the order by itself.
func SayPartitions(report string, start Start, places []Place, details ...any) {
	topics := map[string][]int32{}
	for _, topic := range start.Topics {
		topics[topic.Name] = []int32{}
	}
	for _, place := range places {
		topics[place.Topic] = append(topics[place.Topic], place.Partition)
	}
	for topic, numbers := range topics {
		SayTimed(report, append(details, "topic", topic, "partitions", numbers)...)
	}
}
