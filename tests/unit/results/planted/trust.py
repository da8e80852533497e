"""Defects of the experiment: a load generator, host, fault or run that makes results doubtful."""

from aftershock.tests.unit.results.evidence_factory import S
from aftershock.tests.unit.results.planted.catalogue import defect
from aftershock.tests.unit.results.planted.world import Run


@defect("3 % of an arm's records sent 80 ms after their time", unsure=("harness/generator",))
def lagging_generator(run: Run) -> None:
    rows = run.frames["produce"]
    late = (rows["arm"] == "patient") & (rows["seq"] % 33 == 0) & rows["intended_us"].between(40 * S, 50 * S)
    late |= (rows["arm"] == "patient") & (rows["seq"] % 17 == 0) & (rows["intended_us"] >= 39 * S)
    run.set("produce", rows.index[late], sent_us=rows.loc[late, "intended_us"] + 80_000)
    both = rows.index[late & (rows["done_us"] <= rows["intended_us"] + 80_000)]
    run.set("produce", both, done_us=run.frames["produce"].loc[both, "sent_us"] + 2000)


@defect("a host whose timers fire late", unsure=("harness/host",))
def starved_host(run: Run) -> None:
    rows = run.frames["metrics"]
    ticks = rows.index[(rows["name"] == "host.tick_late_us") & (rows["t_us"] >= 6 * S)]
    run.set("metrics", ticks[::10], value=90_000.0)


@defect("a host of which the hypervisor took a fifth", unsure=("harness/host",))
def stolen_host(run: Run) -> None:
    rows = run.frames["metrics"]
    run.set("metrics", rows.index[rows["name"] == "host.steal"], value=0.2)


def _stopped(run: Run, from_us: int, to_us: int) -> None:
    """Stop the producer of an arm: its records are sent, acknowledged and delivered after the stop."""
    sent = run.frames["produce"]
    due = (sent["arm"] == "patient") & sent["intended_us"].between(from_us, to_us)
    run.set("produce", sent.index[due], sent_us=to_us, done_us=to_us + 5_000)
    read = run.frames["consume"]
    ids = set(sent.loc[due, "producer_id"])
    late = read["producer_id"].isin(ids) & read["intended_us"].between(from_us, to_us)
    run.set("consume", read.index[late], done_us=to_us + 9_000)
    run.read_in_order()
    run.documents["events"].append(
        {
            "t_us": to_us,
            "event": "stalled",
            "workload": "orders",
            "arm": "patient",
            "op": "produce",
            "worker": "orders-patient-produce",
            "since_us": from_us,
            "until_us": to_us,
            "late_us": to_us - from_us - 50_000,
            "suspended_us": 0,
            "stepped_us": 0,
            "stolen": 0.0,
        }
    )


STOP_SLOS = ("produce.latency max < 500ms in recovery", "produce.gap < 500ms in recovery")


@defect(
    "a producer process stopped for 0.4 s of the recovery (kill -STOP), and SLOs that this breaks: not Kafka",
    unsure=("slo/produce.latency-max-recovery", "slo/produce.gap-recovery"),
    says="orders-patient-produce stood still for 0.35 s",
)
def stopped_producer(run: Run) -> None:
    run.slos(*(text.replace("500ms", "300ms") for text in STOP_SLOS))
    _stopped(run, 42 * S, 42 * S + 400_000)


@defect(
    "the same, and 2 s later acknowledgements that Kafka delayed by 0.6 s: a failure of Kafka",
    fails=("slo/produce.latency-max-recovery", "slo/produce.gap-recovery"),
    says="without suspect times",
)
def stopped_producer_and_slow_kafka(run: Run) -> None:
    stopped_producer(run)
    sent = run.frames["produce"]
    slow = (sent["arm"] == "patient") & sent["intended_us"].between(44 * S, 44 * S + 600_000)
    run.set("produce", sent.index[slow], done_us=44 * S + 620_000)
    read = run.frames["consume"]
    late = read["producer_id"].isin(set(sent.loc[slow, "producer_id"])) & read["intended_us"].between(
        44 * S, 44 * S + 600_000
    )
    run.set("consume", read.index[late], done_us=44 * S + 630_000)
    run.read_in_order()


@defect(
    "a suspended host in a tenth of the steady phase: nothing failed, but little was tested",
    unsure=("slo/produce.latency-p95-steady", "compare/produce.latency-p95-patient-baseline-steady"),
    says="the runner stood still for 3.00 s",
)
def suspended_host(run: Run) -> None:
    run.documents["events"].append(
        {
            "t_us": 9 * S,
            "event": "stalled",
            "arm": None,
            "since_us": 8 * S,
            "until_us": 9 * S,
            "late_us": 0,
            "suspended_us": 3 * S,
            "stepped_us": 0,
            "stolen": 0.0,
        }
    )


@defect("a warm-up that never settled", unsure=("harness/warmup",))
def never_settled(run: Run) -> None:
    run.documents["run"]["warmup"] = {"settled": False, "after_ms": 30_000, "why": "medians still drift by 40 %"}


def _unsettled_patient(run: Run) -> None:
    state = {"settled": False, "after_ms": 30_000, "why": "orders-patient-produce: the latency drifted by 40 ms"}
    run.documents["run"]["warmup"] = state | {"unsettled": ["orders-patient-produce"]}
    sent = run.frames["produce"]
    slow = sent["intended_us"].between(6 * S, 16 * S)
    run.set("produce", sent.index[slow], done_us=sent.loc[slow, "done_us"] + 100_000)
    read = run.frames["consume"]
    late = read["intended_us"].between(6 * S, 16 * S)
    run.set("consume", read.index[late], done_us=read.loc[late, "done_us"] + 100_000)
    run.read_in_order()


@defect(
    "one client whose latency never settled, and latencies of another that are too high: these fail",
    fails=("slo/produce.latency-p95-steady",),
    unsure=("harness/warmup", "slo/produce.latency-p50-steady"),
    says="not settled: 1 of 4 clients, orders-patient-produce",
)
def settled_elsewhere(run: Run) -> None:
    run.slos("produce.latency p95 < 50ms in steady for baseline", "produce.latency p50 < 50ms in steady for patient")
    _unsettled_patient(run)


@defect(
    "the same client, 3 % of whose records fail: no drift of the latency explains that",
    fails=("slo/produce.success",),
    unsure=("harness/warmup",),
)
def failures_of_the_unsettled(run: Run) -> None:
    run.slos("produce.success >= 99% for patient")
    _unsettled_patient(run)
    rows = run.frames["produce"]
    failed = (rows["producer_id"] == 1) & (rows["seq"] % 33 == 0)
    seqs = rows.loc[failed, "seq"]
    run.set("produce", rows.index[failed], status="failed", error="MSG_SIZE_TOO_LARGE", offset=None)
    for table in ("log", "consume"):
        kept = run.frames[table]
        run.frames[table] = kept[~((kept["producer_id"] == 1) & kept["seq"].isin(seqs))].reset_index(drop=True)


@defect(
    "one client whose generator fell behind, and latencies of another that are too high: these fail",
    fails=("slo/produce.latency-p95-steady",),
    unsure=("harness/generator", "slo/produce.latency-p50-recovery"),
)
def lagging_elsewhere(run: Run) -> None:
    run.slos("produce.latency p95 < 50ms in steady for baseline", "produce.latency p50 < 1ms in recovery for patient")
    lagging_generator(run)
    sent = run.frames["produce"]
    slow = (sent["arm"] == "baseline") & sent["intended_us"].between(6 * S, 16 * S)
    run.set("produce", sent.index[slow], done_us=sent.loc[slow, "done_us"] + 100_000)


@defect(
    "a client whose generator fell behind, and 3 % of whose records fail: no delay of 80 ms explains that",
    fails=("slo/produce.success",),
    unsure=("harness/generator",),
)
def failures_of_the_lagging(run: Run) -> None:
    failures_of_the_unsettled(run)
    run.documents["run"]["warmup"] = {"settled": True, "after_ms": 6000, "why": "medians stopped drifting"}
    lagging_generator(run)


@defect(
    "a client that completed nothing in the warm-up: it has no latency to settle, and all of it is judged",
    fails=("slo/produce.latency-p50-steady",),
    unsure=("harness/warmup",),
    says="orders-patient-produce completed nothing in the warm-up, and is judged all the same",
)
def silent_in_the_warm_up(run: Run) -> None:
    run.slos("produce.latency p50 < 50ms in steady for patient")
    _unsettled_patient(run)
    run.documents["run"]["warmup"]["silent"] = ["orders-patient-produce"]


WITH_KILL = (
    "witness/kill-1",
    "slo/recovery-kill-1",
    "slo/produce.gap-fault",
    "slo/produce.success",
    "slo/consume.latency-p99",
    "slo/lost",
)


@defect("a fault whose witness failed: what it bears on is not proven", unsure=WITH_KILL)
def failed_witness(run: Run) -> None:
    for line in run.documents["journal"]:
        if line["fault"] == "kill-1" and "witness" in line:
            line["witness"] |= {"observed": "running", "ok": False}


@defect("a fault of which the journal has no line `healed`", unsure=WITH_KILL)
def never_healed(run: Run) -> None:
    journal = run.documents["journal"]
    journal[:] = [line for line in journal if (line["fault"], line["state"]) != ("kill-1", "healed")]


@defect(
    "a fault that no traffic met",
    unsure=("exposure/latency-1", "slo/produce.latency-p95-fault/latency-1", *WITH_KILL[2:]),
)
def no_exposure(run: Run) -> None:
    for line in run.documents["journal"]:
        if line["fault"] == "latency-1":
            line["targets"] = line["targets"] | {"links": ["client_c-k1"]}


@defect("a run that was interrupted", unsure=("harness/complete",))
def interrupted(run: Run) -> None:
    run.documents["run"] |= {"status": "interrupted", "why": "SIGINT"}


@defect(
    "an interrupted run, and a loss: not read yet, perhaps", unsure=("harness/complete", "integrity/lost", "slo/lost")
)
def interrupted_with_a_loss(run: Run) -> None:
    run.documents["run"] |= {"status": "interrupted", "why": "SIGINT"}
    run.lose(0, 1495, read_by="baseline")


@defect("an interrupted run, and a duplicate: it stands", fails=("integrity/duplicate",), unsure=("harness/complete",))
def interrupted_with_a_duplicate(run: Run) -> None:
    run.documents["run"] |= {"status": "interrupted", "why": "SIGINT"}
    run.add("log", run.get("log", run.at("log", 0, 9)) | {"offset": 100_000})


@defect("a record that was done before it was sent", unsure=("harness/clock",))
def clock_backwards(run: Run) -> None:
    index = run.at("produce", 0, 350)
    run.set("produce", index, done_us=run.get("produce", index)["sent_us"] - 1)


@defect(
    "a record that was delivered after it was due, but before it was sent, in a block that is examined",
    unsure=("harness/clock",),
)
def delivered_before_it_was_sent(run: Run) -> None:
    """A record in doubt has its block of records examined one by one."""
    run.lose(0, 351, status="in_doubt", read_by="baseline patient")
    sent_us = run.get("produce", run.at("produce", 0, 350))["intended_us"] + 2000
    run.set("produce", run.at("produce", 0, 350), sent_us=sent_us)
    run.set("consume", run.at("consume", 0, 350, "patient"), done_us=sent_us - 1)


@defect("a phase in which nothing was sent", unsure=("slo/produce.latency-p95-fault/latency-1", "harness/load"))
def a_phase_without_records(run: Run) -> None:
    run.slos("produce.latency p95 < 250ms in fault/latency-1", "produce.latency p95 < 50ms in steady")
    sent = run.frames["produce"]
    seqs = sent["seq"][sent["intended_us"].between(16 * S, 24 * S)]
    for table in ("produce", "consume", "log"):
        rows = run.frames[table]
        run.frames[table] = rows[~rows["seq"].isin(seqs)]


UNREAD = ("backward", "beyond", "collision", "corrupt", "duplicate", "order", "phantom", "skipped")


@defect(
    "a consumer that was never given anything: no rule of its deliveries holds for want of any",
    fails=("integrity/lost", "slo/lost", "slo/consume.latency-p99", "obligation/consume"),
    unsure=tuple(f"integrity/{rule}" for rule in UNREAD),
)
def nothing_delivered(run: Run) -> None:
    rows = run.frames["consume"]
    run.frames["consume"] = rows[rows["arm"] != "patient"]


def _hosts(run: Run, *bounds_us: int) -> None:
    """Put the consumer of each arm on a host of its own, whose times are at most so many microseconds wrong."""
    run.documents["run"]["hosts"] = [
        {"name": f"orders-{number}", "clients": [f"orders-{arm}-consume"], "clock_bound_us": bound_us}
        for number, (arm, bound_us) in enumerate(zip(("baseline", "patient"), bounds_us, strict=True), 1)
    ]


def _median_us(run: Run, table: str) -> int:
    rows = run.frames[table]
    steady = rows[(rows["arm"] == "baseline") & rows["intended_us"].between(6 * S, 16 * S)]
    return int((steady["done_us"] - steady["intended_us"]).quantile(0.5, interpolation="nearest"))


@defect("a host of clients whose times may be 4 ms wrong", unsure=("harness/clocks",), says="at most 4.000 ms wrong")
def wrong_clock(run: Run) -> None:
    _hosts(run, 4_000, 300)


@defect(
    "clients on further hosts, and no word of how wrong their clocks were",
    unsure=("harness/clocks",),
    says="does not tell how wrong their clocks were",
)
def unknown_clocks(run: Run) -> None:
    run.documents["timeline"]["workloads"][0]["run_on"] = {"workers": 2}


@defect(
    "a latency that is nearer to a multiple of another one than both are exact",
    unsure=("compare/consume.latency-p50-baseline-fault-to-steady",),
    says="the clocks of the clients' hosts may be 6.080 ms apart",
)
def multiple_within_the_clocks(run: Run) -> None:
    _hosts(run, 1_200, 700)
    run.slos("consume.latency p50 in fault <= 2.2 * consume.latency p50 in steady for baseline")


@defect(
    "a latency from producer to reader that is nearer to its limit than the clocks of their hosts are exact",
    unsure=("slo/consume.latency-p50-steady",),
    says="the clocks of the clients' hosts may be 1.900 ms apart",
)
def latency_within_the_clocks(run: Run) -> None:
    _hosts(run, 1_200, 700)
    run.slos(f"consume.latency p50 < {_median_us(run, 'consume') + 1_800}us in steady for baseline")


@defect(
    "the same further from its limit, and a producer's latency near to its own: one clock measured it",
    says="the times of clients on 2 hosts are at most 1.200 ms wrong",
)
def latencies_that_the_clocks_decide(run: Run) -> None:
    _hosts(run, 1_200, 700)
    run.slos(
        f"consume.latency p50 < {_median_us(run, 'consume') + 2_100}us in steady for baseline",
        f"produce.latency p50 < {_median_us(run, 'produce') + 300}us in steady for baseline",
    )
