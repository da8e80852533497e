"""The verdict of a trial from its statements."""

import pytest

from aftershock.results.trials.claim import exit_code, verdict
from aftershock.results.trials.statement import Role, Statement, Word, unknown


def said(role: Role, word: Word) -> Statement:
    return Statement(f"{role}-{word}", "", "", "", unknown(), word, "because", role)


CONTROL = said("control", "confirmed")


@pytest.mark.parametrize(
    ("statements", "word"),
    [
        ([said("claim", "confirmed"), CONTROL], "confirmed"),
        ([said("claim", "confirmed"), said("claim", "not seen"), CONTROL], "not seen"),
        ([said("claim", "not seen"), said("claim", "inconclusive"), CONTROL], "inconclusive"),
        ([said("claim", "contradicted"), said("claim", "inconclusive"), CONTROL], "contradicted"),
        ([said("claim", "confirmed"), said("control", "inconclusive")], "inconclusive"),
        ([said("claim", "not seen"), said("control", "contradicted")], "inconclusive"),
        ([said("claim", "confirmed"), said("report", "contradicted"), CONTROL], "confirmed"),
        ([CONTROL], "inconclusive"),
        ([], "inconclusive"),
    ],
)
def test_verdict(statements: list[Statement], word: Word) -> None:
    """Each rule has a case that it alone decides; nothing claimed is never confirmed."""
    assert word == verdict(statements).word


def test_the_reason_names_who_decided() -> None:
    """A reader is told which statement it hangs on."""
    assert "claim-not seen: because" == verdict([said("claim", "not seen"), CONTROL]).why
    assert "control" in verdict([said("claim", "confirmed"), said("control", "inconclusive")]).why


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["confirmed", "confirmed"], 0),
        (["confirmed", "inconclusive"], 2),
        (["confirmed", "not seen"], 2),
        (["inconclusive", "contradicted"], 1),
        ([], 2),
    ],
)
def test_exit_code(words: list[Word], code: int) -> None:
    """0 only where all are confirmed, 1 where one is contradicted."""
    assert code == exit_code(words)
