"""Second readings of consumer groups: tenures, rebalances, and waits without a delivering owner.

The queries follow "Exact definitions" in ``docs/SLO.md``.
"""

from fractions import Fraction

from aftershock.tests.readings.figure import Asked, Figure, Figures
from aftershock.tests.readings.run import Run

# ruff: noqa: S608 - queries are built from names of this module

WAIT_US_MIN = 50_000
"""Shorter waits do not count."""
JOINED_US = 1_000_000
"""Changes that begin at most so long after the end of another belong to one rebalance."""
NEVER_US = 2**62
"""End of a tenure that the end of the run did not end."""

# Ends of processes: restarts by the events, deaths by the journal.
TENURES = f"""
    create table tenures as
    with moments as (
        select line, t_us, who, worker, event, topic, partition from events
        where event in ('assigned', 'revoked', 'lost', 'restarted')
        union all
        select 1000000000, outages.start_us, members.who, members.worker, 'killed', null, null
        from outages join members using (worker) where verb = 'start_clients' and kind <> 'churn'
    ), periods as (
        select begun.who, begun.worker, begun.topic, begun.partition, begun.line, begun.t_us as start_us,
               coalesce(ended.t_us, {NEVER_US}) as end_us, coalesce(ended.event, 'open') as ended
        from moments as begun
        left join lateral (
            select t_us, event from moments as later
            where (later.who, later.worker) = (begun.who, begun.worker) and later.event <> 'assigned'
            and (later.t_us, later.line) > (begun.t_us, begun.line)
            and (later.event in ('killed', 'restarted')
                 or (later.topic, later.partition) = (begun.topic, begun.partition))
            order by later.t_us, later.line limit 1
        ) as ended on true
        where begun.event = 'assigned' and begun.topic is not null
    )
    -- of several `assigned` with the same end, the first one counts
    select * exclude (line) from periods
    qualify row_number() over (partition by who, worker, topic, partition, end_us, ended order by start_us, line) = 1
"""
WAITS = f"""
    create table waits as
    with marked as (
        select *, coalesce("offset" > max("offset") over before, true) as fresh from outcomes
        where op = 'consume' and "offset" is not null
        window before as (
            partition by who, topic, partition order by done_us, "offset"
            rows between unbounded preceding and 1 preceding
        )
    ), fresh as (
        select *, lag(done_us) over (partition by who, topic, partition order by done_us, "offset") as previous_us
        from marked where fresh
    ), acks as (
        select producer_id, seq, min(done_us) as acked_us from outcomes
        where op = 'produce' and status = 'ok' group by all
    )
    select fresh.who, topic, partition, greatest(previous_us, coalesce(acked_us, intended_us)) as start_us,
           done_us as end_us, true as delivered
    from fresh left join acks using (producer_id, seq)
    where done_us - greatest(previous_us, coalesce(acked_us, intended_us)) >= {WAIT_US_MIN}
    union all
    select who, topic, partition, start_us, end_us, false from stalls where op = 'consume'
"""
# Moments and times at which a partition lacks a delivering owner, after its first tenure began.
LACKS = f"""
    create table lacks as
    with borders as (
        select who, topic, partition, unnest([start_us, end_us, {NEVER_US}]) as t_us from tenures
        union
        select who, topic, partition, unnest([outages.start_us, outages.end_us])
        from tenures join outages using (worker) where kind <> 'churn'
    ), pieces as (
        select who, topic, partition, t_us as start_us,
               lead(t_us) over (partition by who, topic, partition order by t_us) as end_us
        from borders
    ), firsts_of as (select who, topic, partition, min(start_us) as first_us from tenures group by all)
    select who, topic, partition, pieces.start_us, pieces.end_us
    from pieces join firsts_of using (who, topic, partition)
    where pieces.end_us is not null and pieces.start_us >= first_us
    and not exists (
        select 1 from tenures as held
        where (held.who, held.topic, held.partition) = (pieces.who, pieces.topic, pieces.partition)
        and held.start_us <= pieces.start_us and held.end_us >= pieces.end_us
        and not exists (
            select 1 from outages where outages.worker = held.worker and kind <> 'churn'
            and outages.start_us <= pieces.start_us and outages.end_us >= pieces.end_us
        )
    )
    union all
    select who, topic, partition, start_us, start_us
    from tenures join firsts_of using (who, topic, partition)
    qualify row_number() over (partition by who, topic, partition order by start_us) > 1
"""
UNOWNED = """
    create table unowned as
    select waits.who, waits.topic, waits.partition, waits.end_us - waits.start_us as us,
           greatest(waits.start_us, min(lacks.start_us)) as lacking_us
    from waits join lacks on (lacks.who, lacks.topic, lacks.partition) = (waits.who, waits.topic, waits.partition)
    and lacks.start_us <= waits.end_us and lacks.end_us >= waits.start_us
    where waits.start_us >= (
        select min(tenures.start_us) from tenures
        where (tenures.who, tenures.topic, tenures.partition) = (waits.who, waits.topic, waits.partition)
    )
    and not exists (
        select 1 from tenures join group_names as theirs using (who)
        join group_names as own on own.group_name = theirs.group_name and own.who <> theirs.who
        where own.who = waits.who and (tenures.topic, tenures.partition) = (waits.topic, waits.partition)
        and tenures.start_us < waits.end_us and tenures.end_us > waits.start_us
    )
    group by waits.who, waits.topic, waits.partition, waits.start_us, waits.end_us
"""
REBALANCES = f"""
    create table changes as
    with marks as (
        select distinct who, worker, topic, partition, t_us from events
        where event in ('assigned', 'position_reset')
    ), deliveries as (
        select got.who, got.worker, got.topic, got.partition, done_us, marks.t_us as since_us
        from outcomes as got asof join marks
        on marks.who = got.who and marks.worker = got.worker and marks.topic = got.topic
        and marks.partition = got.partition and marks.t_us <= got.done_us
        where op = 'consume'
    ), read as (
        select tenures.who, tenures.worker, tenures.topic, tenures.partition, start_us, end_us, ended,
               min(done_us) as first_us, max(done_us) as last_us
        from tenures left join deliveries
        on (deliveries.who, deliveries.worker, deliveries.topic, deliveries.partition)
         = (tenures.who, tenures.worker, tenures.topic, tenures.partition)
        and since_us >= start_us and since_us < end_us
        group by all
    ), pairs as (
        select who, topic, partition, worker as owner, start_us, coalesce(first_us, start_us) as read_us,
               lag(worker) over places as former, lag(end_us) over places as former_end_us,
               lag(ended) over places as former_ended, lag(last_us) over places as former_last_us
        from read window places as (partition by who, topic, partition order by start_us)
    )
    select who, topic, partition, former, owner, read_us,
           case when former_ended in ('open', 'restarted') and former_last_us is not null
                then least(former_last_us, start_us) else least(former_end_us, start_us) end as freed_us
    from pairs where former is not null;

    create table rebalances as
    with numbered as (
        select *, sum(begins) over (partition by who order by freed_us, topic, partition) as number from (
            select *, coalesce(freed_us > {JOINED_US} + max(read_us) over (
                partition by who order by freed_us, topic, partition rows between unbounded preceding and 1 preceding
            ), true)::integer as begins from changes
        )
    )
    select who, number, min(freed_us) as start_us, max(read_us) as end_us from numbered group by all;

    create table standing as
    select rebalances.who, rebalances.number, rebalances.start_us, rebalances.end_us, topic, partition,
           arg_max(worker, tenures.start_us) filter (tenures.start_us < rebalances.start_us) as before,
           arg_max(worker, tenures.start_us) as owner
    from rebalances join tenures on tenures.who = rebalances.who and tenures.start_us <= rebalances.end_us
    group by all;
"""


def prepare(run: Run) -> None:
    for statements in (TENURES, WAITS, LACKS, UNOWNED, REBALANCES):
        run.db.execute(statements)


def figures(run: Run, asked: Asked) -> Figures:
    groups = [who for (who,) in run.rows("select who from subscriptions where members > 1")]
    window = f"(select start_us as from_us, end_us as to_us from spans where window_name = '{asked.window}')"
    if asked.metric == "consume.unowned":
        rows = run.rows(f"""
            select who, topic, partition, max(us) from unowned
            join {window} on lacking_us >= from_us and lacking_us < to_us group by all""")
        found = {who: [Figure(Fraction(0))] for who in groups}
        for who, _, _, us in rows:
            found[who].append(Figure(Fraction(us)))
        return found
    began = f"(select * from rebalances join {window} on start_us >= from_us and start_us < to_us)"
    query = {
        "rebalance.count": f"select who, count(*) from {began} group by all",
        "rebalance.duration": f"select who, max(end_us - start_us) from {began} group by all",
        "assignment.skew": f"""
            select who, max(skew) from (
                select who, number, max(n) - min(n) as skew from (
                    select who, number, owner, count(*) as n from standing
                    join {window} on start_us >= from_us and start_us < to_us group by all
                ) group by all
            ) group by all""",
        "consume.stopped": f"""
            select standing.who, max(coalesce(waits.end_us - waits.start_us, 0))
            from standing join {window} on standing.start_us >= from_us and standing.start_us < to_us
            left join waits on (waits.who, waits.topic, waits.partition)
                = (standing.who, standing.topic, standing.partition)
            and waits.delivered and waits.start_us < standing.end_us and waits.end_us > standing.start_us
            where before = owner group by all""",
    }[asked.metric]
    values = dict(run.rows(query))
    if asked.metric == "rebalance.count":
        return {who: [Figure(Fraction(values.get(who, 0)))] for who in groups}
    return {who: [Figure(Fraction(us))] for who, us in values.items()}
