"""``analysis.json``: what was measured, as rows of plain data, for the reports, the story and the comparisons.

Rules: what was measured is flat, so a row is its fields; a mapping's key becomes fields of its row; rows are in order,
so that the same facts give the same bytes; a key that a reader doesn't find was not measured by the version that
judged, an empty list was measured and nothing seen.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aftershock.results.measure.facts import Cut, Distribution, Facts

SCHEMA_VERSION = 2
_SEEN = ("metric", "client", "window")

Row = dict[str, Any]


def document(facts: Facts) -> Row:
    """All of ``analysis.json``."""
    return {
        "schema_version": SCHEMA_VERSION,
        "distributions": [_named(_SEEN, key) | _spread(seen) for key, seen in _sorted(facts.distributions)],
        "gaps": [_named(_SEEN, key) | vars(seen) for key, seen in _sorted(facts.longest)],
        "recoveries": [_named(("fault", "client"), key) | vars(seen) for key, seen in _sorted(facts.recoveries)],
        "bin_us": facts.bin_us,
        "bins": _rows(facts.bins),
        "crossed": {fault: vars(seen) for fault, seen in _sorted(facts.crossed)},
        "host": vars(facts.host),
        "spectra": [_named(_SEEN, key) | {"points": points} for key, points in _sorted(facts.spectra)],
        "racks": _rows(facts.racks),
        "slowest": [_named(("op", "client"), key) | {"records": _rows(some)} for key, some in _sorted(facts.slowest)],
        "stalls": _rows(facts.stalls),
        "failures": [
            _named(("side", "client"), key) | vars(one) for key, some in _sorted(facts.failures) for one in some
        ],
        "findings": _rows(finding for _, finding in _sorted(facts.findings)),
        "unavailable": [
            _named(("side", "client", "window"), key) | {"partitions": _rows(some)}
            for key, some in _sorted(facts.unavailable)
        ],
        "lag": [
            {"client": client, "seconds": [[one.at_us, one.records, one.oldest_us] for one in seconds]}
            for client, seconds in _sorted(facts.lag)
        ],
        "perf": [{"client": client} | vars(seen) for client, seen in _sorted(facts.perf)],
        "cuts": [_cut(facts, *key) for key in facts.cuts],
        "calms": [vars(calm) | {"client": client} | vars(seen) for (calm, client), seen in facts.calms.items()],
    }


def _cut(facts: Facts, cut: Cut, client: str) -> Row:
    slices = [
        {"subject": one.subject, "start_us": one.start_us, **_spread(one.seen)} for one in facts.slices(cut, client)
    ]
    return vars(cut) | {"client": client, "slices": slices}


def _spread(seen: Distribution) -> Row:
    bands = [
        {"q": q, "confidence": confidence, "low_us": low_us, "high_us": high_us}
        for (q, confidence), (low_us, high_us) in _sorted(seen.bands)
    ]
    return vars(seen) | {"at": {repr(q): value for q, value in seen.at.items()}, "bands": bands}


def _named(names: Sequence[str], key: Sequence[str]) -> Row:
    return dict(zip(names, key, strict=True))


def _rows(values: Iterable[Any]) -> list[Row]:
    return [vars(one) for one in values]


def _sorted(found: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    return sorted(found.items(), key=lambda item: item[0])
