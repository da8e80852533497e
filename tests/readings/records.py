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
    select 'consume.latency', who, intended_us, done_us - intended_us,
           topic, partition, producer_id, broker_rack, broker_id, null
    from owed where not unreached
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
# What each reader owes, with its first delivery; a record that no log has cannot be delivered.
OWED = """
    create table owed as
    select reader.who, sent.topic, sent.partition, sent.producer_id, sent.seq, sent.intended_us,
           sent.done_us as acked_us, first.done_us, first.broker_rack, first.broker_id,
           first.done_us is null and coalesce(sent."offset" >= reach.stop, false) as unreached
    from outcomes as sent
    join subscriptions as reader using (topic)
    left join firsts as first on (first.who, first.producer_id, first.seq) = (reader.who, sent.producer_id, sent.seq)
    left join reach on (reach.who, reach.topic, reach.partition) = (reader.who, sent.topic, sent.partition)
    where sent.op = 'produce' and sent.status = 'ok'
    and (not from_latest or sent.intended_us >= (select min(start_us) from spans where window_name = 'run'))
    and (first.done_us is not null or not exists (select 1 from log) or exists (
        select 1 from log where (log.producer_id, log.seq) = (sent.producer_id, sent.seq)
    ))
"""
SUBJECTS = {
    "rack": "broker_rack",
    "broker": "broker_id",
    "partition": "topic || '/' || partition",
    "producer": "producer_id",
    "epoch": "topic || '/' || partition || ' ' || leader_epoch",
    None: "''",
}
TOPICS_OF = {"consume": "subscriptions", "produce": "producers"}


def expected(asked: Asked) -> str:
    """Return a query of the subjects ``who subject`` that count without a record, too."""
    places = "select who, topic || '/' || partition as subject from {} join partitions using (topic)"
    producers = "select who, cast(producer_id as varchar) as subject from producers"
    nobody = "select null as who, null as subject where false"
    if asked.by == "partition" and asked.op in TOPICS_OF:
        return places.format(TOPICS_OF[asked.op])
    return producers if (asked.by, asked.op) == ("producer", "produce") else nobody


def prepare(run: Run) -> None:
    for statement in (FIRSTS, REACH, OWED, SAMPLES):
        run.db.execute(statement)


def figures(run: Run, asked: Asked) -> Figures:
    metric = asked.metric if asked.kind in ("latency", "service") else f"{asked.op}.latency"
    subject = SUBJECTS[asked.by]
    rows = run.rows(f"""
        with valued as (
            select who, cast({subject} as varchar) as subject, list(us order by us nulls last) as values
            from samples join spans on intended_us >= start_us and intended_us < end_us
            where metric = '{metric}' and window_name = '{asked.window}' and {subject} is not null group by all
        )
        select who, subject, values from valued
        union all select who, subject, [] from ({expected(asked)}) anti join valued using (who, subject)
        order by all""")
    found: dict[str, list[Figure]] = {}
    for who, _, values in rows:
        value = value_of(asked, values) if values else None
        found.setdefault(who, []).append(Figure(value, len(values)))
    return found


def value_of(asked: Asked, values: list[int | None]) -> Fraction | None:
    failed = Fraction(values.count(None), len(values))
    if asked.kind == "success":
        return 1 - failed
    if asked.kind == "budget":
        return failed / (1 - Fraction(asked.metric.partition("(")[2].rstrip("%)")) / 100)
    return at_rank(str(asked.aggregate), values)
