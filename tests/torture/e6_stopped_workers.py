"""Hypothesis: a client process that the host stops for seconds is never reported as a failure of Kafka.

Method: in a run on a healthy cluster, a random client process is stopped (SIGSTOP) for 0.1 to 5 s at three random
moments. The plan's SLOs on latency and gaps can't be kept during a stop of seconds. The run may pass or be
INCONCLUSIVE, but no check may FAIL.
"""

import random
import signal
import time
from pathlib import Path

from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.world.client_processes import send_signal, workers
from aftershock.tests.torture.clusters import blamed, finished, running
from aftershock.tests.torture.runner import Experiment, Outcome

STOPS = 3
PLAN = """
name: stopped
cluster: {racks: {a: 1, b: 1}}
topics: [{name: orders, partitions: 3, replication: 2}]
workloads:
  - name: orders
    produce: {topic: orders, rate: 60/s, record_size: 200, deadline: 20s}
    consume: {topic: orders, group: readers}
timing: {warmup: {min: 2s, max: 30s}, steady: 14s, fault: 6s, recovery: 6s}
faults:
  - {id: slow, at: 0s, for: 4s, kind: latency, link: "client(a) -> broker", delay: 20ms}
slo:
  - "lost == 0"
  - "produce.latency p95 < 400ms in steady"
  - "produce.latency p95 < 400ms in fault"
  - "produce.gap < 500ms in steady"
  - "consume.latency p95 < 500ms in steady"
  - "consume.gap < 500ms in fault"
  - "produce.latency max < 500ms"
  - "produce.unavailable < 1s"
  - "produce.success >= 99.9%"
  - "consume.lag max < 20 records"
  - "consume.freshness max < 500ms"
  - "recovery < 8s after slow"
"""


def trial(seed: int, scratch: Path) -> Outcome:
    source = random.Random(seed)  # noqa: S311 -- repeatable on purpose
    with running(PLAN, scratch, "--seed", str(seed), "--json") as command:
        command.wait_for("s  steady")
        moments_s = sorted(source.uniform(0.2, 22.0) for _ in range(STOPS))
        begun_s = time.monotonic()
        stopped = 0
        for moment_s in moments_s:
            still_lacking(lambda: "later", max(0.0, begun_s + moment_s - time.monotonic()))
            clients = workers(command.run_dir.name)
            if not clients:
                break
            processes = clients[source.choice(sorted(clients))]
            send_signal(processes, signal.SIGSTOP)
            still_lacking(lambda: "later", source.uniform(0.1, 5.0))
            send_signal(processes, signal.SIGCONT)
            stopped += 1
        status, bad, verdict = finished(command)
        return Outcome(bad + blamed(verdict), stopped, counts={status: 1})


EXPERIMENT = Experiment(
    name="e6_stopped_workers",
    title="Client processes stopped for 0.1 to 5 s, three times a run",
    figure="checks that failed although Kafka was healthy",
    aim="0",
    trials=17,
    trial=trial,
    wall_s=400.0,
    takes_s=60.0,
)
