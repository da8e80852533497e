// Command packets delays, duplicates or corrupts a random share of the packets that the kernel's firewall puts into a queue
// (NFQUEUE). It runs until SIGTERM, and then lets all packets pass that it still holds.
//
//	packets QUEUE '{"action": "delay", "share": 1, "delay_us": 20000, "jitter_us": 5000}'
//
// Counters are in the file /run/packets-QUEUE.json, the process id in /run/packets-QUEUE.pid. Rules must not queue packets with
// the mark 7, which duplicates have, and should let packets pass if this program has ended (--queue-bypass).
package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Constants of linux/netfilter/nfnetlink_queue.h.
const (
	packetMessage  = unix.NFNL_SUBSYS_QUEUE << 8
	verdictMessage = unix.NFNL_SUBSYS_QUEUE<<8 | 1
	configMessage  = unix.NFNL_SUBSYS_QUEUE<<8 | 2

	configCommand, configParameters, configLength, configMask, configFlags = 1, 2, 3, 4, 5
	packetHeader, packetVerdict, packetPayload                             = 1, 2, 10

	bind, copyPacket, failOpen, accept = 1, 2, 1, 1
	wholePacket, queueLength           = 0xffff, 8192
	mark                               = 7
	every                              = 50 * time.Millisecond
)

type change struct {
	Action   string  `json:"action"`
	Share    float64 `json:"share"`
	DelayUs  int64   `json:"delay_us"`
	JitterUs int64   `json:"jitter_us"`
}

type queue struct {
	number        uint16
	change        change
	connection    *netlink.Conn
	raw           int
	sending       sync.Mutex
	held          sync.WaitGroup
	ending        chan struct{}
	seen, changed atomic.Int64
}

func main() {
	if len(os.Args) != 3 {
		fail("usage: packets QUEUE JSON")
	}
	number, err := strconv.ParseUint(os.Args[1], 10, 16)
	if err != nil {
		fail(err)
	}
	q := &queue{number: uint16(number), ending: make(chan struct{})}
	if err := json.Unmarshal([]byte(os.Args[2]), &q.change); err != nil {
		fail(err)
	}
	if err := q.open(); err != nil {
		fail(err)
	}
	name := fmt.Sprintf("/run/packets-%d", number)
	if err := os.WriteFile(name+".pid", []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
		fail(err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM)
	go q.count(name + ".json")
	go q.receive()
	<-signals
	close(q.ending)
	q.held.Wait()
}

func fail(reason any) {
	fmt.Fprintln(os.Stderr, "packets:", reason)
	os.Exit(1)
}

// open binds the queue, and opens a socket for duplicates.
func (q *queue) open() (err error) {
	if q.connection, err = netlink.Dial(unix.NETLINK_NETFILTER, nil); err != nil {
		return err
	}
	if q.raw, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW); err != nil {
		return err
	}
	if err = unix.SetsockoptInt(q.raw, unix.SOL_SOCKET, unix.SO_MARK, mark); err != nil {
		return err
	}
	command := []byte{bind, 0, 0, unix.AF_INET}
	parameters := append(big32(wholePacket), copyPacket)
	for _, attributes := range [][]netlink.Attribute{
		{{Type: configCommand, Data: command}},
		{{Type: configParameters, Data: parameters}},
		{{Type: configLength, Data: big32(queueLength)}},
		{{Type: configMask, Data: big32(failOpen)}, {Type: configFlags, Data: big32(failOpen)}},
	} {
		message, err := q.message(configMessage, netlink.Request|netlink.Acknowledge, attributes)
		if err != nil {
			return err
		}
		if _, err := q.connection.Execute(message); err != nil {
			return fmt.Errorf("the queue %d can't be bound: %w", q.number, err)
		}
	}
	return nil
}

func (q *queue) message(kind netlink.HeaderType, flags netlink.HeaderFlags, attributes []netlink.Attribute) (netlink.Message, error) {
	body, err := netlink.MarshalAttributes(attributes)
	// address family, version, and the number of the queue
	general := append([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, byte(q.number>>8), byte(q.number))
	return netlink.Message{Header: netlink.Header{Type: kind, Flags: flags}, Data: append(general, body...)}, err
}

func (q *queue) receive() {
	for {
		messages, err := q.connection.Receive()
		if err != nil {
			fail(err)
		}
		for _, message := range messages {
			if message.Header.Type != packetMessage || len(message.Data) < 4 {
				continue
			}
			attributes, err := netlink.UnmarshalAttributes(message.Data[4:])
			if err != nil {
				fail(err)
			}
			var id, payload []byte
			for _, attribute := range attributes {
				switch attribute.Type {
				case packetHeader:
					id = attribute.Data[:4]
				case packetPayload:
					payload = attribute.Data
				}
			}
			if id != nil {
				q.handle(id, payload)
			}
		}
	}
}

func (q *queue) handle(id, payload []byte) {
	q.seen.Add(1)
	if rand.Float64() >= q.change.Share {
		q.pass(id, nil)
		return
	}
	switch q.change.Action {
	case "delay":
		delay := q.change.DelayUs
		if q.change.JitterUs > 0 {
			delay += rand.Int63n(2*q.change.JitterUs+1) - q.change.JitterUs
		}
		q.changed.Add(1)
		q.held.Add(1)
		go func() {
			defer q.held.Done()
			select {
			case <-time.After(time.Duration(delay) * time.Microsecond):
			case <-q.ending:
			}
			q.pass(id, nil)
		}()
	case "duplicate":
		if to, ok := destination(payload); ok && unix.Sendto(q.raw, payload, 0, to) == nil {
			q.changed.Add(1)
		}
		q.pass(id, nil)
	case "corrupt":
		if at := dataOffset(payload); at > 0 && at < len(payload) {
			altered := append([]byte(nil), payload...)
			altered[at+rand.Intn(len(altered)-at)] ^= 1 << rand.Intn(8)
			q.changed.Add(1)
			q.pass(id, altered)
			return
		}
		q.pass(id, nil)
	default:
		fail("there is no action " + q.change.Action)
	}
}

// pass lets a packet continue, with another content if payload is given.
func (q *queue) pass(id, payload []byte) {
	attributes := []netlink.Attribute{{Type: packetVerdict, Data: append(big32(accept), id...)}}
	if payload != nil {
		attributes = append(attributes, netlink.Attribute{Type: packetPayload, Data: payload})
	}
	message, err := q.message(verdictMessage, netlink.Request, attributes)
	if err != nil {
		fail(err)
	}
	q.sending.Lock()
	defer q.sending.Unlock()
	if _, err := q.connection.Send(message); err != nil {
		fail(err)
	}
}

// count writes the counters until the program ends.
func (q *queue) count(file string) {
	for range time.Tick(every) {
		text, _ := json.Marshal(map[string]int64{"seen": q.seen.Load(), "changed": q.changed.Load()})
		if os.WriteFile(file+".partial", text, 0o644) == nil {
			_ = os.Rename(file+".partial", file)
		}
	}
}

// destination returns the address to which an IPv4 packet goes.
func destination(packet []byte) (*unix.SockaddrInet4, bool) {
	if len(packet) < 20 || packet[0]>>4 != 4 {
		return nil, false
	}
	return &unix.SockaddrInet4{Addr: [4]byte(packet[16:20])}, true
}

// dataOffset returns where the data of a TCP segment begins in its IPv4 packet, 0 for another packet.
func dataOffset(packet []byte) int {
	if len(packet) < 20 || packet[0]>>4 != 4 || packet[9] != unix.IPPROTO_TCP {
		return 0
	}
	header := int(packet[0]&15) * 4
	if len(packet) < header+20 {
		return 0
	}
	return header + int(packet[header+12]>>4)*4
}

func big32(value uint32) []byte {
	return binary.BigEndian.AppendUint32(nil, value)
}
