// Package pipe speaks the protocol of docs/EXEC.md: orders on standard input, reports on standard output.
package pipe

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// Program is a Go library behind the protocol.
type Program struct {
	Module   string                             // path of the library
	Version  func() string                      // of the library; by default that of the module in this build
	Lacks    map[string]string                  // what the library, or this program, can't do, with the reason
	Settings any                                // of the arm; unknown ones are refused
	Check    func() error                       // of the settings, beyond that
	Ops      map[string]func(Start, chan Order) // `produce`, `consume` and `commit`
}

// Run carries out the start order. With the arguments `--describe SETTINGS` it tells the library's version, what it lacks,
// and why it refuses the settings of an arm.
func (program Program) Run() {
	if at := slices.Index(os.Args, "--describe"); at > 0 {
		program.describe(os.Args[at+1])
		return
	}
	start, orders := open(program.Settings)
	program.Ops[start.Op](start, orders)
	Say("bye")
}

func (program Program) describe(settings string) {
	version := program.Version
	if version == nil {
		version = program.builtVersion
	}
	refused := decode([]byte(settings), program.Settings)
	if refused == nil && program.Check != nil {
		refused = program.Check()
	}
	description := map[string]any{"version": version(), "lacks": program.Lacks}
	if refused != nil {
		description["refused"] = refused.Error()
	}
	line, err := json.Marshal(description)
	Must(err)
	fmt.Println(string(line))
}

// decode reads the settings of an arm; a setting that the program does not know is an error.
func decode(text []byte, settings any) error {
	strict := json.NewDecoder(bytes.NewReader(text))
	strict.DisallowUnknownFields()
	return strict.Decode(settings)
}

func (program Program) builtVersion() string {
	build, _ := debug.ReadBuildInfo()
	for _, module := range build.Deps {
		if module.Path == program.Module {
			return strings.TrimPrefix(module.Version, "v")
		}
	}
	return ""
}

// Topic is a topic of the start order, with the start offsets of a consumer without a group.
type Topic struct {
	Name       string          `json:"name"`
	Partitions int32           `json:"partitions"`
	Positions  map[int32]int64 `json:"positions"`
}

// Start is the first order.
type Start struct {
	Op            string          `json:"op"`
	Bootstrap     string          `json:"bootstrap"`
	Topic         string          `json:"topic"`
	Topics        []Topic         `json:"topics"`
	Pattern       string          `json:"pattern"`
	ClientID      string          `json:"client_id"`
	ClientRack    string          `json:"client_rack"`
	Settings      json.RawMessage `json:"settings"`
	Acks          string          `json:"acks"`
	Idempotence   bool            `json:"idempotence"`
	LingerMs      int64           `json:"linger_ms"`
	DeadlineMs    int64           `json:"deadline_ms"`
	Group         string          `json:"group"`
	Members       int             `json:"members"`
	GroupProtocol string          `json:"group_protocol"`
	Assignor      string          `json:"assignor"`
	InstanceID    string          `json:"instance_id"`
	Commits       *Commits        `json:"commit"`
	ProcessingMs  int64           `json:"processing_ms"`
	From          string          `json:"from"`
	Groups        []string        `json:"groups"`
	Isolation     string          `json:"isolation"`
	Transaction   *Transaction    `json:"transaction"`
}

// Commits tells when a consumer commits what it has processed: after a time, or after a number of records.
type Commits struct {
	EveryMs      int64 `json:"every_ms"`
	EveryRecords int64 `json:"every_records"`
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

// TopicNames returns the names of the topics.
func (start Start) TopicNames() (names []string) {
	for _, topic := range start.Topics {
		names = append(names, topic.Name)
	}
	return names
}

// Order is any later order, such as `send` or `commit`.
type Order struct {
	Do        string       `json:"do"`
	Seq       int64        `json:"seq"`
	Topic     string       `json:"topic"`
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

var output sync.Mutex

// open reads the start order, and the settings of the arm into `settings`; a setting that it lacks is an error.
// Orders arrive on the channel until `close`; the end of standard input ends the process at once.
func open(settings any) (start Start, orders chan Order) {
	input := bufio.NewReaderSize(os.Stdin, 1<<16) // a Scanner would refuse the order to send a large record
	read := func(into any) {
		line, err := input.ReadBytes('\n')
		if err != nil {
			os.Exit(1)
		}
		Must(json.Unmarshal(line, into))
	}
	read(&start)
	Must(decode(start.Settings, settings))
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

// SayTimed is Say with the time on the host's monotonic clock.
func SayTimed(report string, details ...any) {
	const monotonic = 1 // CLOCK_MONOTONIC
	var now syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, monotonic, uintptr(unsafe.Pointer(&now)), 0)
	Say(report, append(details, "at_ns", now.Nano())...)
}

// Must reports an error after which the program can't continue.
func Must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		Say("died", "why", err.Error())
		os.Exit(1)
	}
}

// Complain reports an error that ends nothing.
func Complain(name string, err error) { Say("error", "error", name, "detail", err.Error()) }

//go:embed errors.json
var errorNames []byte

// ErrorName returns the name of an error code of Kafka or librdkafka.
func ErrorName(code int) string {
	name, known := names()[strconv.Itoa(code)]
	if !known {
		return "UNKNOWN_SERVER_ERROR"
	}
	return name
}

var names = sync.OnceValue(func() (names map[string]string) {
	Must(json.Unmarshal(errorNames, &names))
	return names
})

// Traffic counts the bytes exchanged with each broker, and reports them each second.
type Traffic struct {
	lock  sync.Mutex
	bytes map[int32][2]int64
}

// Add counts bytes; those of bootstrap addresses, which have a negative number, do not count.
func (traffic *Traffic) Add(broker int32, sent, received int) {
	if broker < 0 {
		return
	}
	traffic.lock.Lock()
	defer traffic.lock.Unlock()
	if traffic.bytes == nil {
		traffic.bytes = map[int32][2]int64{}
	}
	both := traffic.bytes[broker]
	traffic.bytes[broker] = [2]int64{both[0] + int64(sent), both[1] + int64(received)}
}

// Set replaces the counts of all brokers.
func (traffic *Traffic) Set(bytes map[int32][2]int64) {
	traffic.lock.Lock()
	defer traffic.lock.Unlock()
	traffic.bytes = bytes
}

// Report reports the counts each second.
func (traffic *Traffic) Report() {
	for range time.Tick(time.Second) {
		traffic.lock.Lock()
		totals := maps.Clone(traffic.bytes)
		traffic.lock.Unlock()
		if totals != nil {
			Say("traffic", "brokers", totals)
		}
	}
}
