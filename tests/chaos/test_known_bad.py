"""Known-bad clients on a real cluster: the expected check fails each of them, and no other client fails."""

import json
from collections import defaultdict
from typing import Any

import pytest

from aftershock.tests.chaos.conftest import DEADLINE_S
from aftershock.tests.chaos.known_bad.catalogue import KnownBad, known_bad, plan

pytestmark = pytest.mark.engine

DOOR = "aftershock.tests.chaos.known_bad"
JUDGED = ("slo", "integrity", "obligation")
NOTHING = KnownBad("", "", "", lambda: None)


def verdict(aftershock: Any, name: str, **door: str) -> dict[str, Any]:
    command = aftershock(plan(name).read_text(), "--seed", "8", "--json", **door)
    # a member that never joins again is waited for twice: at its heal, and at the end, until it has been idle
    _, stdout = command.finish(2 * DEADLINE_S)
    assert "" == command.left_behind()
    judged = dict(json.loads(stdout))
    run = json.loads((command.run_dir / "run.json").read_text())
    judged["producers"] = {each["producer_id"]: each["arm"] for each in run["producers"]}
    return judged


def failed(judged: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return arm → check → reason. Defects in the log are attributed to the producers."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for check in judged["checks"]:
        if check["kind"] in JUDGED and (check["status"] == "FAIL" or would_fail(check)):
            for arm in [check["arm"]] if check["arm"] else writers(judged, check):
                found[arm][check["id"]] = check["why"]
    return found


def writers(judged: dict[str, Any], check: dict[str, Any]) -> set[str]:
    return {judged["producers"][producer] for producer, _ in check["samples"]} or {"nobody"}


def would_fail(check: dict[str, Any]) -> bool:
    """Return whether the check fails or would fail: a starved host leaves time checks undecided, so their measured
    value counts.
    """
    is_his = check["id"] == known_bad().get(check["arm"], NOTHING).caught
    return is_his and "; measured: " in check["why"] and (check["observed"] or 0) > check["threshold"]


def wrong(arm: str, found: dict[str, str]) -> str:
    """Return the differences from the expected result; an empty list if there are none."""
    bad = known_bad().get(arm, NOTHING)
    more = found.keys() - {bad.caught} - bad.also
    if more:
        return f"it has no right to fail {sorted(more)}: {found}"
    if bad.caught and bad.caught not in found:
        return f"it must fail {bad.caught}: {found}"
    return "" if bad.says in found.get(bad.caught, "") else f"the reason does not say {bad.says!r}: {found}"


def arms(judged: dict[str, Any]) -> set[str]:
    return set(judged["arms"])


def misjudged(judged: dict[str, Any]) -> dict[str, str]:
    found = failed(judged)
    told = {arm: wrong(arm, found[arm]) for arm in arms(judged) | found.keys()}
    return {arm: why for arm, why in told.items() if why}


def test_defects_in_handling_responses(aftershock: Any) -> None:
    """Eight clients with errors or missing responses: each fails for its own defect, in one run; the correct clients
    don't.
    """
    assert {} == misjudged(verdict(aftershock, "answers", door=DOOR))


@pytest.mark.nightly
def test_defects_when_leaders_move_die_or_stall(aftershock: Any) -> None:
    """Eleven more, some of them in positions."""
    assert {} == misjudged(verdict(aftershock, "leaders", door=DOOR))


@pytest.mark.nightly
def test_defects_of_group_members(aftershock: Any) -> None:
    """Nine more, which show when members leave, die or stand still."""
    assert {} == misjudged(verdict(aftershock, "members", door=DOOR))


@pytest.mark.nightly
def test_defects_that_former_excuses_hid(aftershock: Any) -> None:
    """Ten more, beside a setting or a fault that explains other anomalies: it explains none of theirs."""
    assert {} == misjudged(verdict(aftershock, "excuses", door=DOOR))


@pytest.mark.nightly
def test_defects_of_fenced_producers(aftershock: Any) -> None:
    """One more: no broker accepts anything of it; the good ones begin anew."""
    assert {} == misjudged(verdict(aftershock, "fencing", door=DOOR))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["answers", "leaders", "members", "excuses", "fencing"])
def test_the_same_without_the_defects_raises_no_alarm(aftershock: Any, name: str) -> None:
    """Every client of the plan is correct, and none fails."""
    assert {} == failed(verdict(aftershock, name))
