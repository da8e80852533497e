"""Hypothesis: a healthy cluster and correct clients raise no alarm.

Method: short runs with load, in turn as a rehearsal without faults and with faults that the clients must survive (a
slow link, a broker that is killed and comes back). The objectives leave room for the faults. A FAIL or an ERROR is a
false alarm; INCONCLUSIVE, for example because the host was too busy, is counted beside.
"""

from pathlib import Path

from aftershock.tests.torture.clusters import blamed, finished, running
from aftershock.tests.torture.runner import Experiment, Outcome

PLAN = """
name: clean
cluster: {racks: {a: 1, b: 1, c: 1}}
topics: [{name: orders, partitions: 6, replication: 3, config: {min.insync.replicas: 2}}]
workloads:
  - name: orders
    produce: {topic: orders, rate: 60/s, record_size: 200, acks: all, deadline: 20s}
    consume: {topic: orders, group: readers}
    arms: {confluent: {client: confluent}, reference: {client: reference}}
timing: {warmup: {min: 2s, max: 30s}, steady: 5s, fault: 5s, recovery: 5s}
faults:
  - {id: slow, at: 0s, for: 3s, kind: latency, link: "client(a) -> broker", delay: 30ms}
  - {id: dead, at: 5s, for: 3s, kind: kill, broker: leader of orders/0}
slo:
  - "lost == 0"
  - "duplicate == 0"
  - "order == 0"
  - "produce.success >= 99%"
  - "recovery < 15s after dead"
"""


def trial(seed: int, scratch: Path) -> Outcome:
    with running(PLAN, scratch, "--seed", str(seed), "--json", *(["--rehearse"] if seed % 2 else [])) as command:
        status, bad, verdict = finished(command)
        return Outcome(bad + blamed(verdict), 1, counts={status: 1})


EXPERIMENT = Experiment(
    name="e9_clean_runs",
    title="Clean runs",
    figure="runs with a failed check or an error",
    aim="0",
    trials=200,
    trial=trial,
    wall_s=400.0,
    takes_s=60.0,
)
