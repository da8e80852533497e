"""How fast record batches are built and parsed on one core: ``python tests/bench/bench_records.py``.

Records of 1000 bytes with our header, in batches of 16, 100 and 1000. ``parse`` checks the CRC and reads every record.
``unlike``: values of changing sizes, which are built one by one. kafka-python stands beside us. CPU time, and of that
the best of ROUNDS, because the noise of a shared host only ever adds. Exits with 1 when parsing misses a target: 0.15 M
records/s at 100 a batch, so that it takes less than what the consumer does with a record.
"""

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

from aftershock.tests.unit.workloads.kafka.wire.record_shapes import Shape, alike
from aftershock.workloads.kafka.wire.batch import parse

SIZE_BYTES = 1000
RECORDS = 4_000
ROUNDS = 15
TARGETS_M = {100: 0.15}


class Rates(NamedTuple):
    """Millions of records a second."""

    build: float
    their_build: float
    parse: float
    their_parse: float


def rate_m(work: Callable[[], object], records: int) -> float:
    """The best of ROUNDS, each over RECORDS records."""
    best_s = float("inf")
    for _ in range(ROUNDS):
        begun_s = time.process_time()
        for _ in range(max(1, RECORDS // records)):
            work()
        best_s = min(best_s, time.process_time() - begun_s)
    return max(1, RECORDS // records) * records / best_s / 1e6


def rates(shape: Shape) -> Rates:
    batch, records = shape.build(), len(shape.values)

    return Rates(
        rate_m(shape.build, records),
        rate_m(shape.built_by_kafka_python, records),
        rate_m(lambda: list(parse(batch)), records),
        rate_m(lambda: parsed_by_kafka_python(batch), records),
    )


def parsed_by_kafka_python(batch: bytes) -> list[object]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka.record.default_records import DefaultRecordBatch  # noqa: PLC0415  # its import warns

    theirs = DefaultRecordBatch(batch)
    assert theirs.validate_crc()
    return list(theirs)


def shapes() -> Iterator[tuple[str, int, Shape]]:
    for count in (16, 100, 1000):
        yield "alike", count, alike(count, SIZE_BYTES, ms_apart=0)
    shape = alike(100, SIZE_BYTES)
    cut = [(value or b"")[number * 7 % 50 :] for number, value in enumerate(shape.values)]
    yield "unlike", 100, shape._replace(values=list(cut))


def main() -> int:
    missed = 0
    columns = "".join(f"{name:>13}" for name in Rates._fields)
    sys.stdout.write(f"{'M records/s':12}{'a batch':>8}{columns}\n")
    for kind, count, shape in shapes():
        found = rates(shape)
        sys.stdout.write(f"{kind:12}{count:8}" + "".join(f"{rate:13.2f}" for rate in found) + "\n")
        missed += kind == "alike" and found.parse < TARGETS_M.get(count, 0)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
