"""Silver histograms compared with plain lists: quantiles, means, spectrum points, windows, racks and plot bins."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from aftershock.results.evidence.evidence import Evidence, Phase
from aftershock.results.measure.latency import Histogram, bins, histogram, silver_of
from aftershock.results.tables.dims import Scene

LATENCY = st.one_of(st.none(), st.integers(-2, 8), st.integers(0, 10**7))
QS = (0.07, 0.5, 0.9, 0.95, 0.99, 1.0)
SILVER = pa.schema(
    [
        *((name, pa.string()) for name in ("client", "metric")),
        ("segment", pa.int32()),
        *((name, pa.string()) for name in ("client_rack", "broker_rack")),
        *((name, pa.int64()) for name in ("latency_us", "n", "bytes")),
    ]
)
SCENE = Scene(
    cast(
        "Evidence",
        SimpleNamespace(
            phases=(Phase("steady", None, 5, 10), Phase("fault", "a", 10, 40), Phase("fault", "b", 60, 80)),
            clients=(),
            journal=(),
            events=(),
        ),
    )
)
SEGMENTS = {"steady": {0}, "fault": {1, 3}, "fault/a": {1}, "fault/b": {3}, "run": {0, 1, 2, 3}}


def _sorted(values: list[int | None]) -> list[int | None]:
    return sorted(values, key=lambda value: (value is None, value))


def _rank(values: list[int | None], percent: int) -> int | None:
    return _sorted(values)[-(-percent * len(values) // 100) - 1]


def _of(values: list[int | None]) -> Histogram:
    known = np.array(sorted(value for value in values if value is not None), dtype=np.int64)
    return histogram(known, np.ones(len(values), dtype=np.int64), np.full(len(values), 7))


@given(values=st.lists(LATENCY, min_size=1, max_size=60))
def test_quantiles_and_ranks_are_those_of_the_sorted_samples(values: list[int | None]) -> None:
    """Quantiles are nearest-rank with censored samples last; mean and maximum are of samples with a value."""
    seen, known = _of(values), [value for value in values if value is not None]
    told = seen.distribution(QS)
    assert [told.at[q] for q in QS] == [_rank(values, round(100 * q)) for q in QS]
    assert [seen.at_rank(rank) for rank in range(len(values) + 2)] == [None, *_sorted(values), None]
    assert (told.n, told.censored, told.slowest_us) == (len(values), values.count(None), max(known, default=None))
    assert told.mean_us == (sum(known) / len(known) if known else None)
    assert seen.backwards == sum(value < 0 for value in known)
    assert seen.bytes == 7 * len(known)


@given(values=st.lists(LATENCY, min_size=1, max_size=200))
def test_every_point_of_a_spectrum_is_exact(values: list[int | None]) -> None:
    """Each point has the exact number of samples up to its latency; the slowest known sample and the end are points."""
    points, known = _of(values).points(), [value for value in values if value is not None]
    for share, us in points:
        took = [value for value in known if us is None or value <= us]
        assert round(share * len(values)) == (len(values) if us is None else len(took))
    assert points[-1][0] == 1.0
    assert max(known, default=None) in [us for _, us in points] or not known
    assert len(points) <= 4 * 9 + 2


ROW = st.tuples(
    st.sampled_from(["w/a", "w/b"]),
    st.sampled_from(["produce.latency", "produce.service"]),
    st.sampled_from([None, 0, 1, 2, 3]),
    st.sampled_from([None, "a", "b"]),
    st.sampled_from([None, "a"]),
    LATENCY,
    st.integers(1, 3),
    st.sampled_from([None, 10]),
)


@given(rows=st.lists(ROW, max_size=60))
def test_a_window_is_the_sum_of_its_segments(rows: list[tuple[object, ...]]) -> None:
    """Metrics and clients are separate; samples outside all segments are in no window; empty windows have no row."""
    result = silver_of(pa.Table.from_pylist([dict(zip(SILVER.names, row, strict=True)) for row in rows], SILVER))
    seen = result.by_window(SCENE)
    for client in ("w/a", "w/b"):
        for metric in ("produce.latency", "produce.service"):
            for window, segments in SEGMENTS.items():
                mine = [row for row in rows if row[:2] == (client, metric) and row[2] in segments]
                values = [row[5] for row in mine for _ in range(cast("int", row[6]))]
                one = seen.get((metric, client, window))
                assert (one is None) == (not values)
                if one:
                    expected = [_rank(cast("list[int | None]", values), round(100 * q)) for q in QS]
                    assert [one.at(q) for q in QS] == expected
    flows = {
        (rack_flow.client, rack_flow.window, rack_flow.client_rack, rack_flow.broker_rack): (
            rack_flow.n,
            rack_flow.bytes,
        )
        for rack_flow in result.rack_flows(SCENE)
    }
    expected_flows: dict[tuple[object, ...], tuple[int, int]] = {}
    for client, metric, segment, near, far, _, n, size in rows:
        for window in ("steady", "fault", "run"):
            if metric == "produce.latency" and segment in SEGMENTS[window]:
                count, total = expected_flows.get((client, window, near, far), (0, 0))
                expected_flows[client, window, near, far] = (count + cast("int", n), total + cast("int", size or 0))
    assert flows == expected_flows


BINNED = st.tuples(st.sampled_from(["w/a", "w/b"]), st.sampled_from([None, "a"]), st.integers(0, 2), LATENCY)


@given(rows=st.lists(BINNED, max_size=60))
def test_bins_have_the_quantiles_of_their_records(rows: list[tuple[str, str | None, int, int | None]]) -> None:
    """Bins are ordered and separate by client and rack; censored records are slower than any other."""
    names = ("client", "client_rack", "bin", "latency_us")
    schema = pa.schema(
        [(name, pa.string()) for name in ("metric", "client", "client_rack")]
        + [(name, pa.int64()) for name in ("bin", "latency_us", "n", "slowest_us")]
    )
    told = [dict(zip(names, row, strict=True)) | {"metric": "m", "n": 1, "slowest_us": row[3]} for row in rows]
    result = bins(pa.Table.from_pylist(told, schema), 1000)
    panels = sorted({row[:3] for row in rows}, key=lambda key: (key[0], key[1] or "", key[2]))
    assert [(one.client, one.rack, one.start_us // 1000) for one in result] == panels
    for key, one in zip(panels, result, strict=True):
        values = [row[3] for row in rows if row[:3] == key]
        assert (one.n, one.censored) == (len(values), values.count(None))
        assert (one.p50_us, one.p99_us) == (_rank(values, 50), _rank(values, 99))
        assert one.slowest_us == max((value for value in values if value is not None), default=None)
