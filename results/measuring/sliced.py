"""The slices of what SLOs ask for beyond the standing measurements, from the rows of ``cuts.py``. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from aftershock.results.facts import MAX, Distribution, Slice
from aftershock.results.measuring.answers import distribution
from aftershock.results.measuring.cuts import Part, parts_of
from aftershock.results.measuring.dims import Scene
from aftershock.results.wanted import Cut

Seen = dict[str, dict[tuple[str, int], Distribution]]
"""By client, subject and part."""


def sliced(
    cuts: Sequence[Cut], rows: Mapping[str, Sequence[Any]], scene: Scene, asked: Sequence[float], qs: Collection[float]
) -> dict[tuple[Cut, str], tuple[Slice, ...]]:
    """All slices of a run, of the answers named ``latencies`` and ``cut_gaps``, by what was asked and the client."""
    found: dict[tuple[Cut, str], tuple[Slice, ...]] = {}
    for number, cut in enumerate(cuts):
        if cut.metric.endswith(".gap"):
            seen = _gaps(cut, [row for row in rows["cut_gaps"] if row["cut"] == number], scene, qs)
        else:
            seen = _latencies([row for row in rows["latencies"] if row["cut"] == number], asked, qs)
        found |= {(cut, client): _slices(cut, scene, some) for client, some in sorted(seen.items())}
    return found


def _slices(cut: Cut, scene: Scene, some: Mapping[tuple[str, int], Distribution]) -> tuple[Slice, ...]:
    """Parts are in the order of ``parts_of``."""
    parts = parts_of(cut, scene)
    return tuple(
        Slice(parts[part].block or subject, parts[part].start_us, one) for (subject, part), one in sorted(some.items())
    )


def _latencies(rows: Iterable[Any], asked: Sequence[float], qs: Collection[float]) -> Seen:
    """The distribution of every slice in which something was due."""
    seen: Seen = defaultdict(dict)
    for row in rows:
        seen[row["client"]][row["subject"], row["part"]] = distribution(row, asked, qs)
    return seen


def _gaps(cut: Cut, rows: Iterable[Any], scene: Scene, qs: Collection[float]) -> Seen:
    """The longest gap of every slice; where a subject had no success, the slice's own length."""
    found: dict[str, dict[str, dict[tuple[int, int], Any]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        found[row["client"]][row["subject"]][row["part"], row["start_us"]] = row
    if cut.each in (None, "block"):
        for client in _doing(cut.metric.split(".")[0], scene):
            found[client].setdefault("", {})
    return {
        client: {
            (subject, number): _gap(part, number, some, qs)
            for subject, some in subjects.items()
            for number, part in enumerate(parts_of(cut, scene))
        }
        for client, subjects in found.items()
    }


def _doing(op: str, scene: Scene) -> list[str]:
    """The clients that do this."""
    side = {"produce": "produces_to", "consume": "consumes_from", "commit": "commits_to"}[op]
    return [client.key for client in scene.evidence.clients if getattr(client, side)]


def _gap(part: Part, number: int, some: Mapping[tuple[int, int], Any], qs: Collection[float]) -> Distribution:
    seen = [(some.get((number, start)), end - start) for start, end in part.spans]
    longest_us = max(row["longest_us"] if row else length for row, length in seen)
    n = sum(row["n"] for row, _ in seen if row)
    return Distribution(n, 0, longest_us, dict.fromkeys(sorted({*qs, MAX}), longest_us))
