"""Second readings of ``gap`` and ``unavailable``: the times in which nothing succeeded."""

from fractions import Fraction

from aftershock.tests.readings.figure import Asked, Figure, Figures
from aftershock.tests.readings.records import SUBJECTS, expected
from aftershock.tests.readings.run import Run

# ruff: noqa: S608 - queries are built from names of this module

GAP_US_MIN = 1000
"""Shorter gaps count as a millisecond."""
STALL_US_MIN = 1_000_000
"""A shorter stall does not count for ``unavailable``."""
PAUSE_US = 1_000_000
"""A stall of failing records ends if nothing waits for longer."""

SUCCESSES = """
    create view successes as
    select * from outcomes where op in ('produce', 'commit') and status = 'ok'
    union all select * from firsts
"""
STALLS = f"""
    create table stalls as
    with waits as (
        select 'produce' as op, who, topic, partition, intended_us as since_us, done_us as until_us, status = 'ok' as ok
        from outcomes where op = 'produce' and partition is not null
        union all
        select 'produce', who, null, null, intended_us, done_us, status = 'ok' from outcomes where op = 'produce'
        union all
        select 'consume', who, topic, partition, acked_us, done_us, done_us is not null from owed
    ), ended as (
        select * exclude (until_us), coalesce(until_us, (select max(end_us) from phases)) as until_us from waits
    ), steps as (
        select *,
            max(until_us) filter (ok) over (before rows between unbounded preceding and 1 preceding) as success_us,
            min(since_us) over (before rows between current row and unbounded following) as wanted_us,
            count(*) filter (ok) over (before rows between unbounded preceding and 1 preceding) as silence,
            lag(until_us) over before as previous_us
        from ended window before as (partition by op, who, topic, partition order by until_us, ok desc)
    ), pieces as (
        select *, greatest(success_us, wanted_us) as start_us from steps
    ), numbered as (
        select *, count(*) filter (start_us > previous_us + {PAUSE_US}) over (
            partition by op, who, topic, partition, silence order by until_us, ok desc
        ) as piece from pieces
    )
    select op, who, topic, partition, min(start_us) as start_us, max(until_us) as end_us
    from numbered group by op, who, topic, partition, silence, piece
    having max(until_us) - min(start_us) >= {STALL_US_MIN}
"""


def prepare(run: Run) -> None:
    run.db.execute(SUCCESSES)
    run.db.execute(STALLS)


def gaps(run: Run, asked: Asked) -> Figures:
    op, subject = asked.op, SUBJECTS[asked.by]
    subject = f"cast({subject} as varchar)"
    rows = run.rows(f"""
        with subjects as (
            select distinct who, {subject} as subject from outcomes where op = '{op}' and {subject} is not null
            union {expected(asked)}
        ), due as (
            select who, {subject} as subject, count(*) as due
            from samples join spans on intended_us >= start_us and intended_us < end_us
            where metric = '{op}.latency' and window_name = '{asked.window}' and {subject} is not null group by all
        ), span as (select start_us, end_us from spans where window_name = '{asked.window}'),
        moments as (
            select who, subject, start_us, unnest([start_us, end_us]) as t_us, false as is_success from subjects, span
            union all
            select who, {subject}, start_us, done_us, true from successes
            join span on done_us >= start_us and done_us < end_us where op = '{op}' and {subject} is not null
        ), steps as (
            select who, subject, is_success,
                   t_us - lag(t_us) over (partition by who, subject, start_us order by t_us) as us from moments
        )
        select who, subject, count(*) filter (is_success), max(us), max(due)
        from steps left join due using (who, subject) group by all""")
    found: dict[str, list[Figure]] = {}
    for who, _, n, us, due in rows:
        # a subject without any success stood still, if anything was due
        figure = Figure(Fraction(max(us, GAP_US_MIN)), n or None) if n or due else Figure(None, 0)
        found.setdefault(who, []).append(figure)
    return found


def throughput(run: Run, asked: Asked) -> Figures:
    """Return the successes within the window, per second of it."""
    spans = run.rows(f"select start_us, end_us from spans where window_name = '{asked.window}'")
    length_us = sum(end_us - start_us for start_us, end_us in spans)
    found: dict[str, list[Figure]] = {}
    for who, figures in gaps(run, asked).items():
        rates = [
            Figure(None if one.value is None else Fraction((one.n or 0) * 1_000_000, length_us)) for one in figures
        ]
        found[who] = rates
    return found


def unavailable(run: Run, asked: Asked) -> Figures:
    """Return the time of each partition, and of the client as a whole, in stalls within the window."""
    rows = run.rows(f"""
        select who, topic, partition,
               sum(least(stalls.end_us, spans.end_us) - greatest(stalls.start_us, spans.start_us))
        from stalls join spans on stalls.start_us < spans.end_us and stalls.end_us > spans.start_us
        where window_name = '{asked.window}' and op = '{asked.op}' group by all""")
    clients = run.rows(f"select distinct who from outcomes where op = '{asked.op}'")
    found = {who: [Figure(Fraction(0))] for (who,) in clients}
    for who, _, _, us in rows:
        found[who].append(Figure(Fraction(us)))
    return found
