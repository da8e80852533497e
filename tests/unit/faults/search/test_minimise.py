"""The whole search with a simulated cluster finds the culprits in any plan around them."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from aftershock.faults.plan.model import Plan
from aftershock.faults.search.candidates import Document, minimise_faults, refusal_of
from aftershock.faults.search.reductions import focus_slos, minimise
from aftershock.tests.unit.faults.search.following import SEED, follow, ids, plan, slow

STEPS = 12


@st.composite
def planted(draw: st.DrawFn) -> tuple[dict[str, Any], frozenset[str]]:
    """Draw a plan of up to twelve faults, some composed, and the set of faults needed for it to fail."""
    count = draw(st.integers(1, STEPS))
    faults = [slow(f"f{n}", 3 * n) for n in range(count)]
    entries: list[dict[str, Any]] = []
    while faults:
        size = draw(st.integers(1, min(3, len(faults))))
        several, faults = faults[:size], faults[size:]
        how = draw(st.sampled_from(["plain", "together", "then", "repeat"]))
        entries += {
            "plain": several,
            "together": [{"together": several}],
            "then": [{"at": "1s", "then": [*several, {"wait": "1s"}]}],
            "repeat": [{"repeat": 2, "every": "60s", "fault": {"together": several}}],
        }[how]
    culprits = draw(st.frozensets(st.sampled_from([f"f{n}" for n in range(count)]), min_size=1, max_size=3))
    return plan(*entries), culprits


@settings(max_examples=20, deadline=None)
@given(planted())
def test_the_search_finds_exactly_the_culprits(drawn: tuple[dict[str, Any], frozenset[str]]) -> None:
    """The culprits are found; each candidate is a valid plan, and their number is bounded."""
    document, culprits = drawn
    left, asked = follow(minimise_faults(document, SEED), lambda said: culprits <= ids(said))
    assert culprits == ids(left)
    assert not any(refusal_of(candidate.document, SEED) for candidate in asked)
    assert len(asked) <= STEPS * STEPS + 3 * STEPS


@settings(max_examples=6, deadline=None)
@given(st.integers(0, STEPS - 1))
def test_one_of_twelve_costs_nine_runs(culprit: int) -> None:
    """Finding one culprit takes one run without faults and two for each halving at most."""
    document = plan(*(slow(f"f{n}", 3 * n) for n in range(STEPS)))
    sizes: list[int] = []

    def fails(said: Document) -> bool:
        sizes.append(len(ids(said)))
        return f"f{culprit}" in ids(said)

    follow(minimise(document, SEED), fails)
    assert sizes.index(1) <= 9
    assert sizes[0] == 0


def test_a_failure_without_faults_leaves_no_fault() -> None:
    """The first candidate has no faults; then only load and cluster are reduced."""
    left, asked = follow(minimise(plan(slow("f0", 0), slow("f1", 3)), SEED), lambda _: True)
    assert [] == left["faults"]
    assert "without any fault" == asked[0].change


def test_everything_reducible_is_reduced() -> None:
    """The result has one fault of the needed strength, one arm, one broker, and minimal load and time."""
    faults = [slow("f0", 0), slow("f1", 3, **{"for": "8s", "delay": "400ms", "jitter": "10ms"}), slow("f2", 14)]
    document = plan(*faults, blocks=3)
    document["workloads"][0]["arms"] = {"a": {}, "b": {"settings": {"retry.backoff.ms": 20}}, "c": {}}

    def fails(said: Document) -> bool:
        read = Plan.model_validate(said)
        (loaded,) = read.workloads
        hit = [each for each in said["faults"] if each["id"] == "f1" and each["for"] in ("8s", "4s")]
        strong = any(each["delay"] in ("400ms", "200ms") for each in hit)
        return strong and "b" in loaded.arms and loaded.produce is not None and loaded.produce.rate >= 20

    left, _ = follow(minimise(document, SEED), fails)
    (fault,) = left["faults"]
    (loaded,) = left["workloads"]
    assert {
        "id": "f1",
        "at": "0s",
        "for": "4s",
        "kind": "latency",
        "link": "client(a) -> broker",
        "delay": "200ms",
    } == fault
    assert (["b"], "20/s", None) == ([*loaded["arms"]], loaded["produce"]["rate"], loaded.get("consume"))
    assert (1, 1, {"a": 1}) == (left["blocks"], left["topics"][0]["partitions"], left["cluster"]["racks"])


def test_an_slo_on_a_fault_keeps_that_fault() -> None:
    """A plan without the fault would be refused, so it is no candidate."""
    document = focus_slos(
        plan(slow("f0", 0), slow("f1", 3), slo=["produce.gap < 1s in fault/f1"]), ["slo/produce.gap-fault/f1"]
    )
    left, asked = follow(minimise(document, SEED), lambda _: True)
    assert {"f1"} == ids(left)
    assert all("f1" in ids(candidate.document) for candidate in asked)
