"""Second readings of metrics that have a value for each record or commit: latency, service, success, budget."""

from fractions import Fraction

from aftershock.tests.readings.figure import Asked, Figure, Figures, at_rank
from aftershock.tests.readings.run import Run

# ruff: noqa: S608 - queries are built from names of this module

SAMPLES = """
    create table samples as
    select op || '.latency' as metric, who, intended_us, case when status = 'ok' then done_us - intended_us end as us,
           topic, partition, producer_id, broker_rack, broker_id, leader_epoch
    from outcomes where op in ('produce', 'commit')
    union all
    select op || '.service', who, intended_us, case when status = 'ok' then done_us - sent_us end,
           topic, partition, producer_id, broker_rack, broker_id, leader_epoch
    from outcomes where op in ('produce', 'commit')
    union all
    select 'consume.latency', reader.who, sent.intended_us, first.done_us - sent.intended_us,
           sent.topic, sent.partition, sent.producer_id, first.broker_rack, first.broker_id, null
    from outcomes as sent
    join subscriptions as reader using (topic)
    left join firsts as first on (first.who, first.producer_id, first.seq) = (reader.who, sent.producer_id, sent.seq)
    left join reach on (reach.who, reach.topic, reach.partition) = (reader.who, sent.topic, sent.partition)
    where sent.op = 'produce' and sent.status = 'ok'
    and (not from_latest or sent.intended_us >= (select min(start_us) from spans where window_name = 'run'))
    and (first.done_us is not null or sent."offset" is null or reach.stop is null or sent."offset" < reach.stop)
"""
FIRSTS = """
    create table firsts as
    select distinct on (who, producer_id, seq) * from outcomes where op = 'consume'
    order by who, producer_id, seq, done_us
"""
# The positions at which readers gave up.
REACH = """
    create table reach as
    select who, topic, partition, max(value) as stop from events where event = 'drain_incomplete' group by all
"""
SUBJECTS = {
    "rack": "broker_rack",
    "broker": "broker_id",
    "partition": "topic || '/' || partition",
    "producer": "producer_id",
    "epoch": "topic || '/' || partition || ' ' || leader_epoch",
    None: "''",
}


def prepare(run: Run) -> None:
    for statement in (FIRSTS, REACH, SAMPLES):
        run.db.execute(statement)


def figures(run: Run, asked: Asked) -> Figures:
    metric = asked.metric if asked.kind in ("latency", "service") else f"{asked.op}.latency"
    subject = SUBJECTS[asked.by]
    rows = run.rows(f"""
        select who, {subject} as subject, list(us order by us nulls last)
        from samples join spans on intended_us >= start_us and intended_us < end_us
        where metric = '{metric}' and window_name = '{asked.window}' and {subject} is not null
        group by all order by all""")
    found: dict[str, list[Figure]] = {}
    for who, _, values in rows:
        found.setdefault(who, []).append(Figure(value_of(asked, values), len(values)))
    return found


def value_of(asked: Asked, values: list[int | None]) -> Fraction | None:
    failed = Fraction(values.count(None), len(values))
    if asked.kind == "success":
        return 1 - failed
    if asked.kind == "budget":
        return failed / (1 - Fraction(asked.metric.partition("(")[2].rstrip("%)")) / 100)
    return at_rank(str(asked.aggregate), values)
