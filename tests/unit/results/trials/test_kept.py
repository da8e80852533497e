"""What trials take from a run's own integrity checks."""

from pathlib import Path

import pytest

from aftershock.results.checks.check import Check, Status
from aftershock.results.trials.claim import integrity
from aftershock.tests.unit.results.trials import on_disk


@pytest.mark.parametrize(
    ("statuses", "word"),
    [
        ([Status.PASS, Status.PASS], "confirmed"),
        ([Status.PASS, Status.INCONCLUSIVE], "inconclusive"),
        ([Status.INCONCLUSIVE, Status.FAIL], "contradicted"),
        ([], "inconclusive"),
    ],
)
def test_the_runs_own_checks_decide(statuses: list[Status], word: str, tmp_path: Path) -> None:
    """One that decided nothing leaves it open, and so do none; those of another rule say nothing."""
    checks = [Check("integrity/lost", "integrity", "arm=w consume", one, 10, 1, "", "as it was") for one in statuses]
    other = Check("integrity/order", "integrity", "arm=w consume", Status.FAIL, 10, 1, "", "")
    found = integrity(on_disk.part(tmp_path, checks=[*checks, other]), ["lost", "duplicate"])
    assert (word, len(statuses)) == (found.word, found.ours.n)
