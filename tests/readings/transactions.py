"""Second readings of ``transaction.latency``, ``transaction.success`` and ``stable_offset.lag``."""

from fractions import Fraction

from aftershock.tests.readings.figure import Asked, Figure, Figures, at_rank
from aftershock.tests.readings.run import Run

# ruff: noqa: S608 - queries are built from names of this module

METRICS = ("transaction", "stable_offset")
"""First words of the metrics that are read here."""

ENDED = """
    create table ended as
    select workload || '/' || arm as who, due_us,
           case when outcome = case intended when 'abort' then 'aborted' else 'committed' end
                then done_us - due_us end as us
    from transactions where due_us is not null
"""
# The highest offsets so far, because a new leader's high watermark is lower at first.
REACHED = """
    create table reached_offsets as
    with parts as (
        select t_us, value::bigint as value, split_part(name, '/', 2) as topic,
               split_part(name, '/', 3)::integer as partition, split_part(name, '/', 1) = 'stable_offset.end' as high
        from metrics where name like 'stable_offset.%'
    ), samples as (
        select topic, partition, t_us, max(value) filter (not high) as stable, max(value) filter (high) as high
        from parts group by all having stable is not null and high is not null
    )
    select topic, partition, t_us,
           max(stable) over (partition by topic, partition order by t_us) as stable,
           max(high) over (partition by topic, partition order by t_us) as high
    from samples
"""
AGES = """
    create table stable_ages as
    select late.topic, late.partition, (late.t_us // 1000000 + 1) * 1000000 as t_us,
           max(case when late.stable < late.high then late.t_us - since.t_us else 0 end) as age_us
    from reached_offsets as late
    left join lateral (
        select min(t_us) as t_us from reached_offsets as first
        where (first.topic, first.partition) = (late.topic, late.partition) and first.high > late.stable
    ) as since on true
    group by all
"""


def prepare(run: Run) -> None:
    for statement in (ENDED, REACHED, AGES):
        run.db.execute(statement)
    run.db.execute("create table transactional (who varchar, topic varchar)")
    for workload in run.timeline["workloads"]:
        produce, pipe = workload.get("produce") or {}, workload.get("pipe") or {}
        for arm in workload["arms"]:
            topics = [produce["topic"]] if produce.get("transaction") else []
            topics += [pipe["to"][arm]] if pipe.get("transactional") else []
            for topic in topics:
                run.db.execute("insert into transactional values (?, ?)", [f"{workload['name']}/{arm}", topic])


def figures(run: Run, asked: Asked) -> Figures:
    if asked.op == "stable_offset":
        return _lag(run, asked)
    rows = run.rows(f"""
        select who, list(us order by us nulls last) from ended
        where exists (select 1 from spans
                      where window_name = '{asked.window}' and due_us >= start_us and due_us < end_us)
        group by who""")
    if asked.kind == "latency":
        return {who: [Figure(at_rank(str(asked.aggregate), values), len(values))] for who, values in rows}
    return {
        who: [Figure(Fraction(sum(value is not None for value in values), len(values)), len(values))]
        for who, values in rows
    }


def _lag(run: Run, asked: Asked) -> Figures:
    """Return the ages over the seconds that end in the window, in the worst partition or in each."""
    subject = "topic || '/' || partition" if asked.by == "partition" else "''"
    rows = run.rows(f"""
        with values_of as (
            select who, {subject} as subject, t_us, max(age_us)::bigint as value
            from stable_ages join transactional using (topic) group by all
        )
        select who, subject, list(value order by value) from values_of
        join spans on t_us > start_us and t_us <= end_us where window_name = '{asked.window}' group by all""")
    found: dict[str, list[Figure]] = {}
    for who, _, values in rows:
        found.setdefault(who, []).append(Figure(at_rank(str(asked.aggregate), values), len(values)))
    return found
