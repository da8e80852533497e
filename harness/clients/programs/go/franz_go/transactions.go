package main

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"aftershock/clients/pipe"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// transactions are those of one transactional id, whose client is opened again when it can't go on.
type transactions struct {
	start    pipe.Start
	options  []kgo.Opt
	versions *spoken
	client   *kgo.Client
	failed   atomic.Pointer[string] // error of a record of the transaction, whose others franz-go would commit
}

// transact produces in transactions until `close`.
func transact(start pipe.Start, orders chan pipe.Order, options []kgo.Opt) {
	versions := &spoken{}
	options = append(options,
		kgo.TransactionalID(start.Transaction.ID),
		kgo.TransactionTimeout(start.Transaction.Timeout()),
		kgo.RecordDeliveryTimeout(min(start.Deadline(), start.Transaction.Timeout())),
		kgo.WithHooks(versions),
	)
	own := &transactions{start: start, options: options, versions: versions}
	own.open()
	pipe.Say("ready", "accepts", []string{"topics", "transactions"})
	for order := range orders {
		switch order.Do {
		case "send":
			own.send(order)
		case "begin_transaction":
			own.begin()
		case "commit_transaction":
			own.end(order.Do, kgo.TryCommit)
		case "abort_transaction":
			own.end(order.Do, kgo.TransactionEndTry(settings.CommitsAborts))
		case "reopen_producer":
			own.client.UnsafeAbortBufferedRecords()
			own.client.Close()
			pipe.AwaitReports()
			own.open()
			pipe.Transacted(order.Do)
		}
	}
	own.client.Close() // the coordinator aborts a transaction that is open
	pipe.AwaitReports()
}

// open opens a client, and gets its producer id, which ends an open transaction; but for an arm that leaves that to the
// begin of its first transaction, as applications do: versions before 1.21.4 fail then if a coordinator is still busy.
func (own *transactions) open() {
	own.client = open(own.options...)
	awaitLeaders(own.client, own.start)
	for !settings.IDByBegin {
		if _, _, err := own.client.ProducerID(background); err == nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (own *transactions) send(order pipe.Order) {
	send(own.client, own.start, order, func(err error) {
		problem := name(err)
		own.failed.CompareAndSwap(nil, &problem)
	})
}

func (own *transactions) begin() {
	own.failed.Store(nil)
	own.versions.added.Store(false)
	if err := own.client.BeginTransaction(); err != nil {
		pipe.Transacted("begin_transaction", "error", name(err))
		return
	}
	id, epoch, err := own.client.ProducerID(background)
	if err != nil {
		pipe.Transacted("begin_transaction", "error", name(err))
		return
	}
	pipe.Transacted("begin_transaction", "producer_id", id, "epoch", epoch)
}

// end commits or aborts. franz-go can't repeat a commit without an answer, so that a new client must take its place.
func (own *transactions) end(order string, how kgo.TransactionEndTry) {
	until, cancel := context.WithTimeout(background, own.start.Deadline())
	defer cancel()
	flush := own.client.Flush
	if how == kgo.TryAbort {
		flush = own.client.AbortBufferedRecords
	}
	if err := flush(until); err != nil {
		pipe.Transacted(order, "error", name(err), "then", "reopen", "in_doubt", false)
		return
	}
	if problem := own.failed.Load(); how == kgo.TryCommit && problem != nil {
		pipe.Transacted(order, "error", *problem, "then", "abort")
		return
	}
	err := own.client.EndTransaction(until, how)
	switch {
	case err == nil:
		pipe.Transacted(order, "version", own.versions.version())
	case how == kgo.TryCommit && (errors.Is(err, kerr.OperationNotAttempted) || errors.Is(err, kerr.TransactionAbortable)):
		pipe.Transacted(order, "error", name(err), "then", "abort")
	default:
		pipe.Transacted(order, "error", name(err), "then", "reopen")
	}
}

// spoken tells the version of the protocol of transactions: version 2 (KIP-890) never sends AddPartitionsToTxn.
type spoken struct{ added atomic.Bool }

const addPartitionsToTxn = 24

func (versions *spoken) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	if key == addPartitionsToTxn {
		versions.added.Store(true)
	}
}

func (versions *spoken) version() int {
	if versions.added.Load() {
		return 1
	}
	return 2
}
