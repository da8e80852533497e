"""Second readings of the integrity counts that records and their order decide: lost, duplicate, order, phantom."""

from fractions import Fraction

from aftershock.tests.readings.figure import Asked, Figure, Figures
from aftershock.tests.readings.judged import ALL_ARMS
from aftershock.tests.readings.run import Run

# A lane is what a member delivers between two assignments or resets of a partition: it must not repeat or go back.
LANES = """
    create table lanes as
    with marks as (
        select who, worker, topic, partition, t_us, count(*) over (
            partition by who, worker, topic, partition order by t_us
        ) as lane from events where event in ('assigned', 'position_reset')
    )
    select got.who, got.worker, got.topic, got.partition, got."offset", done_us, coalesce(lane, 0) as lane
    from outcomes as got asof left join marks
    on marks.who = got.who and marks.worker = got.worker and marks.topic = got.topic
    and marks.partition = got.partition and marks.t_us <= got.done_us
    where op = 'consume' and got."offset" is not null
"""
LOST = """
    select sent.who from outcomes as sent
    where op = 'produce' and (status = 'ok' or (producer_id, seq) in (
        select (producer_id, seq) from outcomes where op = 'consume' and seq is not null
    )) and (producer_id, seq) not in (select (producer_id, seq) from log where seq is not null)
    union all
    select who from (
        select distinct reader.who, sent.producer_id, sent.seq from outcomes as sent
        join log using (producer_id, seq) join subscriptions as reader on reader.topic = log.topic
        left join reach on (reach.who, reach.topic, reach.partition) = (reader.who, log.topic, log.partition)
        where sent.op = 'produce' and (reach.stop is null or log."offset" < reach.stop)
        and (not from_latest or intended_us >= (select min(start_us) from spans where window_name = 'run'))
        and not exists (
            select 1 from firsts
            where (firsts.who, firsts.producer_id, firsts.seq) = (reader.who, sent.producer_id, sent.seq)
        )
    )
    union all
    select who from outcomes as sent where op = 'commit' and status = 'ok' and not exists (
        select 1 from offsets as entry
        where (entry."group", entry.topic, entry.topic_partition) = (sent."group", sent.topic, sent.partition)
        and committed >= sent."offset"
    )
"""
DUPLICATE = """
    select who from producers join log using (producer_id) where seq is not null
    group by who, producer_id, seq having count(*) > 1
    union all
    select who from (
        select who, count(*) over (
            partition by who, worker, topic, partition, lane, "offset" order by done_us
            rows between unbounded preceding and 1 preceding
        ) as before from lanes
    ) where before > 0
"""
ORDER = """
    select who from (
        select who, log.seq < max(log.seq) over (
            partition by log.producer_id, log.topic, log.partition order by log."offset"
            rows between unbounded preceding and 1 preceding
        ) and row_number() over (
            partition by log.producer_id, log.topic, log.partition, log.seq order by log."offset"
        ) = 1 as late
        from log join producers using (producer_id) where seq is not null
    ) where late
    union all
    select who from (
        select who, "offset" < max("offset") over (
            partition by who, worker, topic, partition, lane order by done_us, "offset"
            rows between unbounded preceding and 1 preceding
        ) and row_number() over (
            partition by who, worker, topic, partition, lane, "offset" order by done_us
        ) = 1 as late from lanes
    ) where late
"""
PHANTOM = """
    with sent as (select who, producer_id, seq, status from outcomes where op = 'produce')
    select distinct who || ' ' || seq as record, who from log join sent using (producer_id, seq) where status = 'failed'
    union all
    select null, null from log left join sent using (producer_id, seq) where log.seq is not null and status is null
    union all
    select null, got.who from outcomes as got left join sent using (producer_id, seq)
    where got.op = 'consume' and got.seq is not null and sent.status is null
"""
RULES = {"lost": LOST, "duplicate": DUPLICATE, "order": ORDER, "phantom": PHANTOM}


def prepare(run: Run) -> None:
    run.db.execute(LANES)


def figures(run: Run, asked: Asked) -> Figures:
    """Return the count of each client, and of all arms."""
    # what the log has of unknown records belongs to no client
    found = dict(run.rows(f"select who, count(*) from ({RULES[asked.metric]}) group by all"))  # noqa: S608
    clients = {who for (who,) in run.rows("select distinct who from outcomes")}
    of_all = {ALL_ARMS: [Figure(Fraction(sum(found.values())))]}
    return of_all | {who: [Figure(Fraction(found.get(who, 0)))] for who in clients}
