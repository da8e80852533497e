"""``analysis.json``: a run's measurements as rows of plain data, for reports, stories and comparisons.

Rules: a measurement is a flat dataclass; its fields and the parts of its key in a mapping are the columns of its row.
Rows are sorted, so that the same facts give the same bytes. A missing key means that the version that judged the run
did not measure it; an empty list means that nothing was observed.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aftershock.results.measure.facts import Cut, Distribution, Facts

SCHEMA_VERSION = 2
_SERIES = ("metric", "client", "window")

Row = dict[str, Any]


def document(facts: Facts) -> Row:
    """Return the content of ``analysis.json``."""
    return {
        "schema_version": SCHEMA_VERSION,
        "distributions": [
            _key_fields(_SERIES, key) | _distribution(seen) for key, seen in _sorted(facts.distributions)
        ],
        "gaps": [_key_fields(_SERIES, key) | vars(seen) for key, seen in _sorted(facts.longest)],
        "recoveries": [_key_fields(("fault", "client"), key) | vars(seen) for key, seen in _sorted(facts.recoveries)],
        "bin_us": facts.bin_us,
        "bins": _rows(facts.bins),
        "crossed": {fault: vars(seen) for fault, seen in _sorted(facts.crossed)},
        "host": vars(facts.host),
        "spectra": [_key_fields(_SERIES, key) | {"points": points} for key, points in _sorted(facts.spectra)],
        "racks": _rows(facts.racks),
        "slowest": [
            _key_fields(("op", "client"), key) | {"records": _rows(records)} for key, records in _sorted(facts.slowest)
        ],
        "stalls": _rows(facts.stalls),
        "failures": [
            _key_fields(("side", "client"), key) | vars(failure)
            for key, spans in _sorted(facts.failures)
            for failure in spans
        ],
        "findings": _rows(finding for _, finding in _sorted(facts.findings)),
        "unavailable": [
            _key_fields(("side", "client", "window"), key) | {"partitions": _rows(outages)}
            for key, outages in _sorted(facts.unavailable)
        ],
        "lag": [
            {"client": client, "seconds": [[second.at_us, second.records, second.oldest_us] for second in seconds]}
            for client, seconds in _sorted(facts.lag)
        ],
        "perf": [{"client": client} | vars(seen) for client, seen in _sorted(facts.perf)],
        "cuts": [_cut(facts, *key) for key in facts.cuts],
        "calms": [vars(calm) | {"client": client} | vars(seen) for (calm, client), seen in facts.calms.items()],
    }


def _cut(facts: Facts, cut: Cut, client: str) -> Row:
    slices = [
        {"subject": part.subject, "start_us": part.start_us, **_distribution(part.seen)}
        for part in facts.slices(cut, client)
    ]
    return vars(cut) | {"client": client, "slices": slices}


def _distribution(seen: Distribution) -> Row:
    bands = [
        {"q": q, "confidence": confidence, "low_us": low_us, "high_us": high_us}
        for (q, confidence), (low_us, high_us) in _sorted(seen.bands)
    ]
    return vars(seen) | {"at": {repr(q): value for q, value in seen.at.items()}, "bands": bands}


def _key_fields(names: Sequence[str], key: Sequence[str]) -> Row:
    return dict(zip(names, key, strict=True))


def _rows(values: Iterable[Any]) -> list[Row]:
    return [vars(value) for value in values]


def _sorted(mapping: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    return sorted(mapping.items(), key=lambda item: item[0])
