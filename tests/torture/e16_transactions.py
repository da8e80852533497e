"""Hypothesis: no fault makes a correct client tear or lose a transaction, or a reader see an aborted one.

Method: transactions of two records, mostly in two partitions, a fifth of them aborted, of four producers each of the
clients ``reference`` and ``confluent`` side by side, with readers of both isolation levels. Twelve faults, drawn by the
seed, kill, restart, freeze and cut off brokers, kill producers, and kill and move the coordinators of their
transactions. Only integrity can fail: what the faults do to the rate does not matter, and other failed checks are
counted. Each transaction is a case.
"""

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq

from aftershock.tests.torture.clusters import blamed, finished, running
from aftershock.tests.torture.runner import Experiment, Outcome

WALL_S = 1_200.0  # judging takes minutes on a busy host
PLAN = """
name: transactions
cluster:
  racks: {a: 1, b: 1, c: 1}
  config: {transaction.state.log.num.partitions: 3, transaction.abort.timed.out.transaction.cleanup.interval.ms: 1000}
topics: [{name: ledger, partitions: 6, replication: 3, config: {min.insync.replicas: 2}}]
workloads:
  - name: ledger
    produce:
      topic: ledger
      rate: 100/s
      producers: 4
      keys: 1000
      record_size: 100
      linger: 0ms
      transaction: {records: 2, abort: 20%, timeout: 10s}
    consume: {topic: ledger, isolation: read_committed}
    arms: {confluent: {client: confluent, settings: {reconnect.backoff.max.ms: 1000}}, reference: {client: reference}}
  - name: everything
    consume: {topic: ledger, isolation: read_uncommitted}
timing: {warmup: {min: 2s, max: 15s}, steady: 5s, fault: 5s, recovery: 15s}
faults:
  - repeat: 12
    every: 25s
    fault:
      choose:
        - {fault: {kind: kill, broker: leader of ledger/0, for: 6s}}
        - {fault: {kind: restart, broker: leader of ledger/1}}
        - {fault: {kind: pause, broker: leader of ledger/2, for: 8s}}
        - {fault: {kind: cut, link: "client(a) -> broker(leader of ledger/3)", for: 8s}}
        - {fault: {kind: stall, link: "client(a) -> broker(leader of ledger/4)", for: 8s}}
        - {fault: {kind: kill_client, client: reference, op: produce, for: 3s}}
        - {fault: {kind: kill_client, client: confluent, op: produce, for: 3s}}
        - {fault: {kind: kill, broker: transaction coordinator of ledger-confluent-produce-1, for: 6s}}
        - {fault: {kind: move_transaction_coordinator, transactional_id: ledger-reference-produce-1, for: 6s}}
        - {fault: {kind: move_transaction_coordinator, transactional_id: ledger-confluent-produce-2, for: 6s}}
"""


def trial(seed: int, scratch: Path) -> Outcome:
    with running(PLAN, scratch, "--seed", str(seed), "--json") as command:
        status, bad, verdict = finished(command, WALL_S)
        rows = pq.read_table(command.run_dir / "transactions", columns=["outcome"])["outcome"].to_pylist()
        ended = {f"transactions {name}": count for name, count in Counter(rows).items()}
        failed = blamed(verdict)
        wrong = [text for text in failed if text.startswith("integrity/")]
        others = Counter(f"failed {text.split()[0]}" for text in failed if text not in wrong)
        return Outcome(bad + wrong, len(rows), counts={status: 1} | ended | others)


EXPERIMENT = Experiment(
    name="e16_transactions",
    title="Transactions over kills, freezes, cuts and killed producers",
    figure="failed checks of integrity",
    aim="0",
    trials=10,
    trial=trial,
    wall_s=WALL_S + 60,
    takes_s=480.0,
)
