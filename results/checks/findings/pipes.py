"""Integrity findings about services under test: their outputs, compared with their inputs and with what they committed.

An input is a record of the topic that a service reads, as it is in the log at the end. Its outputs are the records of
the other topic that bear its mark. If a producer wrote an input twice, the service owes the outputs of both copies.

**Lost** is an input with fewer outputs than the plan asks for. What a service had not reached when it was still making
progress (event ``pipe_settled``) is not judged. **Duplicate** is each output beyond the number that the plan allows;
the cause must lie between it and the output before it.

**Order**: within one partition of the outputs, the first outputs of the inputs with one key, from one partition, must
be in the order of those inputs. Inputs without a key have no order that a service must keep.

**Offsets without output**: of a transactional service, an output that was written outside of a transaction, because its
input's position may take effect without it. Of others, the group committed a position above an input before the input's
first output was in the log, so that a crash in between would have lost it. Both times are those of the brokers. Inputs
without any output are lost, and not counted here. A service with intermediate topics is not judged, because it may
commit the position of an input whose records are in such a topic.

**Output without offset** is the reverse, of transactional services only: an input with a committed output, of which no
position above it was committed, or first outside of a transaction. A crash in between would have repeated the output.
Whether output and position were part of the same transaction is not judged: a service of several stages, such as one of
Kafka Streams with a repartition topic, commits the position with the first stage and the output with the last.
"""

from collections.abc import Callable
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from aftershock.results.checks.explanations.pipes import intermediate_topics
from aftershock.results.checks.explanations.rewrites import CLOCKS
from aftershock.results.checks.findings.records import Fact, explode_facts, no_record, place_of, record
from aftershock.results.evidence.groups import OFFSETS_READ
from aftershock.results.spark.tables import Tables, beside, union
from aftershock.results.tables.dims import Dims
from aftershock.results.tables.settled import with_fate

SIDE = "pipe"
_INPUT = ("run", "client", "producer_id", "seq")
_PARTITION = ("run", "client", "topic", "partition")
_SPOT = ("topic", "partition", "offset")


def pipes(
    read: Tables, dims: Dims, persist: Callable[[DataFrame], DataFrame], fates: DataFrame | None = None
) -> DataFrame | None:
    """Return the findings about pipes as in ``records.summed``; None if no run has a pipe.

    ``persist`` caches a Spark table, ``fates`` are those of ``tables/settled.py``.

    Further findings are only reported: ``pipe_unmarked`` counts the outputs, broken if they name no input of the run,
    and ``pipe_unreached`` the inputs that are not judged.
    """
    if read.outputs is None:
        return None
    of_pipes = dims.pipes.select("run", "client", "reads", "writes", "outputs_min", "outputs_max")
    written = (
        read.outputs.join(beside(of_pipes.withColumn("topic", F.col("writes"))), ["run", "topic"])
        .select(
            *("run", "client", "producer_id", "seq", "partition", "offset"),
            F.concat_ws("/", "topic", "partition").alias("output"),
            _to_run_us(dims, "timestamp_ms").alias("written_us"),
        )
        .withColumn("known", F.col("producer_id").isNotNull() & F.col("seq").isNotNull())
    )
    written, inputs = persist(written), persist(_inputs(read, dims, of_pipes))
    of_input = (
        written.where("known")
        .groupBy(*_INPUT)
        .agg(F.count("*").alias("outputs"), F.min("written_us").alias("first_us"))
    )
    judged = inputs.join(of_input, [*_INPUT], "left").withColumns(
        {"outputs": F.coalesce("outputs", F.lit(0)), "record": record()}
    )
    place = {name: name for name in _SPOT}
    few = F.col("outputs") < F.col("outputs_min") * F.col("copies")
    at_loss = place_of(**place, from_us="intended_us", until_us="intended_us")
    due, client = ~F.col("unreached"), F.col("client")
    facts = [
        Fact("pipe_lost", SIDE, client, due | ~few, F.when(few & due, 1), at_loss),
        Fact("pipe_unreached", SIDE, client, few & ~due, 0),
        Fact("pipe_duplicate", SIDE, client, F.col("outputs") > 0, 0),
    ]
    unmarked = written.join(inputs.select(*_INPUT, F.lit(True).alias("sent")), [*_INPUT], "left")
    named = [Fact("pipe_unmarked", SIDE, client, 1, F.col("sent").isNull())]
    found = explode_facts(judged, facts).unionByName(explode_facts(unmarked.withColumn("record", no_record()), named))
    tables = [_repeated(inputs, written, dims), _order(inputs, written, dims), _offsets(read, dims, judged)]
    if fates is not None:
        tables += [_outside(read.outputs, fates, dims), _without_offset(read, dims, judged)]
    return reduce(DataFrame.unionByName, tables, found)


def _is_indirect(dims: Dims) -> Column:
    """Return whether a row's client is a service with intermediate topics."""
    indirect = [
        f"{run} {client.key}"
        for run, evidence in enumerate(dims.evidences)
        for client in evidence.clients
        if client.pipe and intermediate_topics(evidence, client.pipe)
    ]
    return F.concat_ws(" ", "run", "client").isin(indirect)


def _since(before_us: Column, dims: Dims) -> Column:
    """Return the time from which a cause of a further output counts, which was written after one at ``before_us``.

    A service with intermediate topics may have repeated the input there before it wrote any output.
    """
    return F.when(_is_indirect(dims), F.col("intended_us")).otherwise(before_us)


def _repeated(inputs: DataFrame, written: DataFrame, dims: Dims) -> DataFrame:
    """Return the findings about outputs beyond the number that the plan allows, each with the output before it."""
    in_turn = Window.partitionBy(*_INPUT).orderBy("written_us", "output", "output_offset")
    copies = written.where("known").select(*_INPUT, "output", "written_us", F.col("offset").alias("output_offset"))
    ranked = copies.withColumns({"turn": F.row_number().over(in_turn), "before_us": F.lag("written_us").over(in_turn)})
    again = inputs.join(ranked.where("turn > 1"), [*_INPUT]).where("turn > outputs_max * copies")
    place = {name: name for name in _SPOT}
    from_us = _since(F.col("before_us"), dims)
    at = place_of(**place, from_us=from_us, sent_us="before_us", until_us="written_us", output="output")
    copy = Fact("pipe_duplicate", SIDE, F.col("client"), None, 1, at)
    return explode_facts(again.withColumn("record", record()), [copy])


def _outside(outputs: DataFrame, fates: DataFrame, dims: Dims) -> DataFrame:
    """Return the findings about outputs of transactional services that were written outside of transactions."""
    own = dims.pipes.where("transactional").select("run", "client", F.col("writes").alias("topic"))
    joined = with_fate(outputs.join(beside(own), ["run", "topic"]), fates)
    outside = Fact("offsets_without_output", SIDE, F.col("client"), 1, F.col("fate").isNull())
    return explode_facts(joined.withColumn("record", record()), [outside])


def _without_offset(read: Tables, dims: Dims, judged: DataFrame) -> DataFrame:
    """Return the findings about committed outputs of transactional services whose inputs' positions were not.

    The first commit above an input counts, in the order of the log of the group's coordinator.
    """
    readable = {
        run
        for run, evidence in enumerate(dims.evidences)
        if any(line["event"] == OFFSETS_READ and not line.get("error") for line in evidence.events)
    }
    own = dims.pipes.where("transactional and group <> ''").where(F.col("run").isin(readable))
    commits = _commits(read.offsets, own, F.struct(F.col("offset").alias("at"), "transactional").alias("commit"))
    due = judged.where("outputs > 0").join(beside(own.select("run", "client")), ["run", "client"], "left_semi")
    above = Window.partitionBy(*_PARTITION).orderBy(F.col("offset").desc())
    joined = union(due.select(*_PARTITION, "offset", "record"), commits)
    joined = joined.withColumn("first", F.min("commit").over(above)).where("record is not null")
    lacking = ~F.coalesce(F.col("first")["transactional"], F.lit(False))
    return explode_facts(joined, [Fact("output_without_offset", SIDE, F.col("client"), 1, lacking)])


def _commits(offsets: DataFrame, pipes: DataFrame, detail: Column) -> DataFrame:
    """Return the positions that the groups of pipes committed, by the ``offset`` of the last input below each."""
    own = pipes.select("run", "client", "group", F.col("reads").alias("topic"))
    place = (*("run", "client", "topic"), F.col("topic_partition").alias("partition"))
    committed = offsets.where("committed is not null").join(beside(own), ["run", "group", "topic"])
    return committed.select(*place, (F.col("committed") - 1).alias("offset"), detail)


def _to_run_us(dims: Dims, column: str) -> Column:
    """Convert a broker's time (Unix, ms) to the run's clock."""
    origins = [
        F.when(F.col("run") == run, F.lit(int(evidence.run.get("origin_unix_us") or 0)))
        for run, evidence in enumerate(dims.evidences)
    ]
    return F.col(column) * 1000 - F.coalesce(*origins)


def _inputs(read: Tables, dims: Dims, of_pipes: DataFrame) -> DataFrame:
    """Return each input and pipe with ``copies`` in the log, its first place, and whether the service reached it."""
    logged = read.log.where(F.col("producer_id").isNotNull() & F.col("seq").isNotNull())
    producers = dims.producers.select("run", "producer_id")
    own = logged.join(beside(producers), ["run", "producer_id"], "left_semi")
    reads = of_pipes.withColumnRenamed("reads", "topic").drop("writes")
    sent = read.outcomes.where("op = 'produce'").select("run", "producer_id", "seq", "intended_us")
    first = F.min(F.struct(*_SPOT, "key_hash"))
    inputs = (
        own.join(beside(reads), ["run", "topic"])
        .groupBy(*_INPUT, "outputs_min", "outputs_max")
        .agg(F.count("*").alias("copies"), first.alias("place"))
        .select(*_INPUT, "outputs_min", "outputs_max", "copies", "place.*")
        .join(sent, ["run", "producer_id", "seq"], "left")
    )
    stops = [
        (run, client.key, topic, number, position)
        for run, evidence in enumerate(dims.evidences)
        for client in evidence.clients
        for line in evidence.events
        if line["event"] == "pipe_settled" and client.pipe and client.wrote(line) and not line.get("idle")
        for topic, number, position, _ in line.get("positions") or ()
    ]
    if not stops:
        return inputs.withColumn("unreached", F.lit(False))
    table = dims.table(stops, "run int, client string, topic string, partition int, position bigint")
    joined = inputs.join(beside(table), ["run", "client", "topic", "partition"], "left")
    return joined.withColumn("unreached", F.coalesce(F.col("offset") >= F.col("position"), F.lit(False))).drop(
        "position"
    )


def _order(inputs: DataFrame, written: DataFrame, dims: Dims) -> DataFrame:
    by_output = Window.partitionBy(*_INPUT, "output").orderBy("output_offset")
    keyed = inputs.where("key_hash is not null").select(*_INPUT, *_SPOT, "key_hash", "intended_us")
    copies = written.where("known").select(*_INPUT, "output", "written_us", F.col("offset").alias("output_offset"))
    firsts = copies.withColumn("turn", F.row_number().over(by_output)).where("turn = 1").join(keyed, [*_INPUT])
    lane = Window.partitionBy("run", "client", "output", "topic", "partition", "key_hash").orderBy("output_offset")
    before = lane.rowsBetween(Window.unboundedPreceding, -1)
    ahead = firsts.withColumns({"highest": F.max(F.struct("offset", "written_us")).over(before), "record": record()})
    late = F.coalesce(F.col("highest")["offset"] > F.col("offset"), F.lit(False))
    place = {name: name for name in _SPOT}
    before_us = F.col("highest")["written_us"]
    from_us = _since(before_us, dims)
    at = place_of(**place, from_us=from_us, sent_us=before_us, until_us="written_us", output="output")
    return explode_facts(ahead, [Fact("pipe_order", SIDE, F.col("client"), 1, late, at)])


def _offsets(read: Tables, dims: Dims, judged: DataFrame) -> DataFrame:
    """Return the findings about commits; clocks that a plan sets make the times of brokers incomparable.

    In a transaction, offsets and outputs take effect together, whatever their order.
    """
    skewed = {
        run
        for run, evidence in enumerate(dims.evidences)
        if any((line.get("undo") or {}).get("verb") == CLOCKS for line in evidence.journal)
    }
    judged_groups = dims.pipes.where("group <> '' and outputs_min > 0 and not transactional")
    groups = judged_groups.where(~F.col("run").isin(skewed) & ~_is_indirect(dims))
    timed = read.offsets.where("timestamp_ms is not null")
    commits = _commits(timed, groups, _to_run_us(dims, "timestamp_ms").alias("commit_us"))
    due = judged.where("outputs > 0").select(*_PARTITION, "offset", "first_us", "record")
    # in descending order, because Spark recomputes frames that reach forwards for every row
    above = Window.partitionBy(*_PARTITION).orderBy(F.col("offset").desc())
    joined = union(due, commits).withColumn("commit_us", F.min("commit_us").over(above))
    covered = joined.where("first_us is not null and commit_us is not null")
    at = place_of(topic="topic", partition="partition", offset="offset", from_us="commit_us", until_us="first_us")
    early = F.col("commit_us") < F.col("first_us")
    return explode_facts(covered, [Fact("offsets_without_output", SIDE, F.col("client"), 1, early, at)])
