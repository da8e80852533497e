"""Second readings of ``consume.lag`` and ``consume.freshness``, at the end of each second."""

from aftershock.tests.readings.figure import Asked, Figure, Figures, at_rank
from aftershock.tests.readings.run import Run

# ruff: noqa: S608 - queries are built from names of this module

SECOND_US = 1_000_000

# Acknowledged records with their offsets; those that a producer does not know are taken from the log.
ACKED = """
    create table acked as
    select sent.topic, sent.partition, sent."offset", sent.done_us, sent.intended_us from outcomes as sent
    where sent.op = 'produce' and sent.status = 'ok' and sent."offset" is not null
    union all
    select log.topic, log.partition, log."offset", sent.done_us, sent.intended_us from outcomes as sent
    join log using (producer_id, seq)
    where sent.op = 'produce' and sent.status = 'ok' and sent."offset" is null
"""
# One row for each client, partition and end of a second: the highest delivered offset before.
POSITIONS = f"""
    create table positions as
    with lowest as (
        select topic, partition, min("offset") as acked_offset from acked group by all
    ), lowest_got as (
        select who, topic, partition, min("offset") as got_offset from firsts group by all
    ), known as (
        select who, topic, partition,
               case when from_latest then coalesce(got_offset, acked_offset) else acked_offset end - 1 as first_offset
        from subscriptions join lowest using (topic) left join lowest_got using (who, topic, partition)
    ), clients as (
        select who, min(acked.done_us) // {SECOND_US} as since from subscriptions join acked using (topic)
        where who in (select who from firsts) group by all
    ), seconds as (
        select who, (unnest(range(since, (select (max(end_us) + {SECOND_US} - 1) // {SECOND_US} from phases))) + 1)
               * {SECOND_US} as t_us from clients
    ), reached as (
        select who, topic, partition, done_us,
               max("offset") over (partition by who, topic, partition order by done_us) as "offset"
        from firsts
    )
    select seconds.who, known.topic, known.partition, t_us,
           greatest(first_offset, coalesce("offset", first_offset)) as position
    from seconds join known on known.who = seconds.who
    asof left join reached
    on reached.who = seconds.who and reached.topic = known.topic and reached.partition = known.partition
    and reached.done_us < t_us
"""
LAGS = """
    create table lags as
    select who, positions.topic, positions.partition, t_us, coalesce(max("offset") - position, 0) as lag,
           coalesce(t_us - min(done_us), 0) as age_us
    from positions left join acked
    on (acked.topic, acked.partition) = (positions.topic, positions.partition)
    and acked."offset" > position and acked.done_us < t_us
    group by who, positions.topic, positions.partition, t_us, position
"""


def prepare(run: Run) -> None:
    for statement in (ACKED, POSITIONS, LAGS):
        run.db.execute(statement)


def figures(run: Run, asked: Asked) -> Figures:
    """Return lag or age over the seconds that end in the window, of each member if the SLO asks for each."""
    value = "sum(lag)" if asked.kind == "lag" else "max(age_us)"
    subject, owners = "''", ""
    if asked.by == "member":
        subject = "worker"
        owners = """join tenures as own on (own.who, own.topic, own.partition) = (lags.who, lags.topic, lags.partition)
            and own.start_us <= t_us and own.end_us > t_us"""
    rows = run.rows(f"""
        with values_of as (
            select lags.who, {subject} as subject, t_us, {value}::bigint as value from lags {owners} group by all
        )
        select who, subject, list(value order by value) from values_of
        join spans on t_us > start_us and t_us <= end_us where window_name = '{asked.window}' group by all""")
    found: dict[str, list[Figure]] = {}
    for who, _, values in rows:
        found.setdefault(who, []).append(Figure(at_rank(str(asked.aggregate), values), len(values)))
    return found
