"""Hypothesis: correct transactional clients raise no alarm, whichever library they are of and protocol they speak.

Method: short runs on a cluster of transaction version 1 or 2, in turn without faults and with faults that the clients
must survive (a slow link, a broker that is killed and comes back). The clients ``reference``, ``confluent``, ``java``
and franz-go (as an ``exec`` program) write and read in each run, a fifth of the transactions are aborted, and a further
client reads uncommitted records. A FAIL or an ERROR is a false alarm; INCONCLUSIVE, for example because the host was
too busy, is counted beside. Each writing client of a run is a case.
"""

import json
from collections import Counter
from pathlib import Path

from rich.console import Console

from aftershock.harness.campaigns.runner import warm_cluster
from aftershock.harness.run.job import prepare
from aftershock.harness.run.progress import Progress
from aftershock.results.model.check import Status
from aftershock.tests.clients.build import CLIENTS
from aftershock.tests.torture.clusters import blamed
from aftershock.tests.torture.runner import Experiment, Outcome

RUNS = 4
"""Runs of a trial, which share a cluster."""
ARMS = ("reference", "confluent", "java", "franz-go")
PLAN = """
name: clean-transactions
cluster:
  features: {transaction.version: LEVEL}
  config: {transaction.state.log.num.partitions: 3, transaction.abort.timed.out.transaction.cleanup.interval.ms: 1000}
topics: [{name: charges, partitions: 4, replication: 3, config: {min.insync.replicas: 2}}]
workloads:
  - name: charging
    produce:
      {topic: charges, rate: 20/s, record_size: 100, deadline: 20s, transaction: {records: 5, abort: 20%, timeout: 20s}}
    consume: {topic: charges, isolation: read_committed}
    arms:
      reference: {client: reference, settings: {request.timeout.ms: 6000}}
      confluent: {client: confluent, settings: {socket.timeout.ms: 10000, reconnect.backoff.max.ms: 1000}}
      java: {client: java, settings: {request.timeout.ms: 6000}}
      franz-go: {client: exec, command: COMMAND}
  - name: everything
    consume: {topic: charges, isolation: read_uncommitted}
timing: {warmup: {min: 2s, max: 20s}, steady: 5s, fault: 5s, recovery: 12s}
faults:
  - {id: slow, at: 0s, for: 3s, kind: latency, link: "client(a) -> broker", delay: 30ms}
  - {id: dead, at: 5s, for: 3s, kind: kill, broker: leader of charges/0}
slo: ["lost == 0", "torn == 0", "lost_commit == 0", "unaborted == 0", "aborted_read == 0"]
"""


def trial(seed: int, scratch: Path) -> Outcome:
    level, progress = 1 + seed % 2, Progress()
    program = next(client.command for client in CLIENTS if client.name == "franz-go")
    plan = PLAN.replace("LEVEL", str(level)).replace("COMMAND", json.dumps(program))
    bad, counts = list[str](), Counter[str]()
    with warm_cluster("torture", scratch / "runs", None, progress, Console(stderr=True)) as run:
        for number in range(RUNS):
            job = prepare(plan, (), seed * RUNS + number, progress.log, rehearse=bool(number % 2), allow_exec=True)
            home, verdict = run(job)
            counts[f"version {level} {verdict.status.value}"] += 1
            failed = blamed(verdict.to_json())
            if verdict.status is Status.ERROR:
                failed.append("ERROR")
            bad += [f"{home.name}: {text}" for text in failed]
    return Outcome(bad, RUNS * len(ARMS), counts=dict(counts))


EXPERIMENT = Experiment(
    name="e17_clean_transactions",
    title="Clean runs of transactions",
    figure="runs with a failed check or an error",
    aim="0",
    trials=10,
    trial=trial,
    wall_s=900.0,
    takes_s=240.0,
)
