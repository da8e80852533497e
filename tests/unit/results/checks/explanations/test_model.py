"""An explanation matches an anomaly only within each of its limits, in Python as in Spark."""

from dataclasses import astuple, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aftershock.results.checks.explanations.model import (
    AT,
    Anomaly,
    Explanation,
    explained_by,
    first_match,
    in_order,
)
from aftershock.results.spark.tables import small

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


BARE = Explanation("lost", "produce", "a cause", "a file")
AT_PLACE = Anomaly("orders/a", "orders", 3, 812, 10, 20, 4, "orders-a-produce", 2, "readers-a", True, 5)


@pytest.mark.parametrize(
    ("limit", "inside", "outside"),
    [
        ("client", "orders/a", "orders/b"),
        ("worker", "orders-a-produce", "orders-b-produce"),
        ("topic", "orders", "others"),
        ("from_offset", 812, 813),
        ("until_offset", 813, 812),
        ("from_us", 20, 21),
        ("until_us", 10, 9),
        ("sent_by_us", 5, 4),
        ("lasting_us", 10, 11),
        ("epoch", 5, 4),
        ("attempts", 2, 3),
        ("group", "readers-a", "readers-b"),
    ],
)
def test_each_limit_holds(limit: str, inside: Any, outside: Any) -> None:
    assert BARE.explains(AT_PLACE)
    assert replace(BARE, **{limit: inside}).explains(AT_PLACE)
    assert not replace(BARE, **{limit: outside}).explains(AT_PLACE)


@pytest.mark.parametrize(
    "name", ["topic", "partition", "offset", "until_us", "from_us", "worker", "attempts", "group", "sent_us"]
)
def test_an_unknown_value_is_within_no_limit(name: str) -> None:
    """An unknown leader epoch is the exception."""
    bound = Explanation(
        *("lost", "produce", "", "", "orders/a", "orders-a-produce", "orders", None, 3, 0, 1000, 0, 100, 9, 0, 5, 1),
        group="readers-a",
    )
    assert bound.explains(AT_PLACE)
    assert not bound.explains(replace(AT_PLACE, **{name: None}))
    assert bound.explains(replace(AT_PLACE, epoch=None))


@pytest.mark.parametrize(("from_us", "until_us", "inside"), [(10, 20, True), (11, 20, False), (10, 19, False)])
def test_a_cause_throughout_lasts_as_long_as_the_anomaly(from_us: int, until_us: int, inside: bool) -> None:
    around = replace(BARE, from_us=from_us, until_us=until_us)
    assert around.explains(AT_PLACE)
    assert replace(around, throughout=True).explains(AT_PLACE) == inside


@pytest.mark.parametrize("occupied", [False, None])
def test_a_truncation_needs_an_occupied_offset(occupied: bool | None) -> None:
    assert replace(BARE, truncation=True).explains(AT_PLACE)
    assert not replace(BARE, truncation=True).explains(replace(AT_PLACE, occupied=occupied))


def test_a_topic_is_known_by_its_name_and_by_its_id() -> None:
    of_topic = replace(BARE, topic="orders", topic_id="x1")
    assert of_topic.explains(replace(AT_PLACE, topic="x1"))
    assert not of_topic.explains(replace(AT_PLACE, topic="x2"))


def test_certain_explanations_come_first() -> None:
    perhaps, surely = replace(BARE, certain=False), replace(BARE, cause="another")
    assert first_match(in_order([perhaps, surely]), "lost", "produce", AT_PLACE) == surely
    assert first_match([perhaps], "order", "produce", AT_PLACE) is None


def test_spark_agrees_with_python(spark: "SparkSession") -> None:
    """2,000 random anomalies of two runs, each against 30 explanations with random limits."""
    random = np.random.default_rng(8)

    def number(least: int, most: int, known: float = 0.8) -> int | None:
        return int(random.integers(least, most)) if random.random() < known else None

    def text(*values: str, known: float = 0.8) -> str | None:
        return str(random.choice(values)) if random.random() < known else None

    def explanation() -> Explanation:
        topic = text("orders", "bills", known=0.6)
        return Explanation(
            *(str(random.choice(["lost", "order"])), "produce", "", "", text("a", "b", known=0.3)),
            *(text("w1", "w2", known=0.2), topic, f"{topic}-id" if topic else None),
            *(number(0, 2, 0.5) if topic else None, number(0, 40, 0.3), number(40, 99, 0.3)),
            *(number(0, 60, 0.4), number(40, 99, 0.4), number(20, 99, 0.2)),
            *(number(0, 20, 0.2), number(1, 4, 0.3), number(1, 3, 0.2)),
            group=text("g1", "g2", known=0.2),
            throughout=bool(random.random() < 0.3),
            truncation=bool(random.random() < 0.3),
        )

    of_runs = [in_order(explanation() for _ in range(30)) for _ in range(2)]
    rows = []
    for _ in range(2_000):
        since = number(0, 90)
        until = None if since is None or random.random() < 0.1 else since + int(random.integers(0, 30))
        topic = text("orders", "bills", "orders-id", "others")
        place = Anomaly(
            *(str(random.choice(["a", "b", "c"])), topic, number(0, 2), number(0, 99), since, until),
            *(
                number(0, 4, 0.7),
                text("w1", "w2"),
                number(1, 3, 0.7),
                text("g1", "g2"),
                [True, False, None][random.integers(0, 3)],
                number(0, 99),
            ),
        )
        rows.append((int(random.integers(0, 2)), str(random.choice(["lost", "order", "skipped"])), place))
    kinds = {"client": "string", "topic": "string", "worker": "string", "partition": "int", "epoch": "int"}
    kinds |= {"attempts": "int", "group": "string", "occupied": "boolean"}
    names = [field.name for field in fields(Anomaly)]
    schema = ", ".join(f"{name} {kinds.get(name, 'bigint')}" for name in names)
    table = small(
        spark,
        [(at, run, rule, "produce", *astuple(place)) for at, (run, rule, place) in enumerate(rows)],
        f"row int, run int, rule string, side string, {schema}",
    )
    struct = ", ".join(f"'{name}', {name}" for name in names if name != "client")
    anomalies = table.selectExpr("row", "run", "rule", "side", "client", f"cast(named_struct({struct}) as {AT}) as at")
    found = {row["row"]: row["explanation"] for row in explained_by(anomalies, spark, of_runs).collect()}
    expected = {}
    for at, (run, rule, place) in enumerate(rows):
        match = first_match(of_runs[run], rule, "produce", place)
        expected[at] = None if match is None else next(n for n, one in enumerate(of_runs[run]) if one is match)
    assert expected == found
    assert len(set(found.values())) >= 20
