"""The table of planted bugs is as the code is: each text is there once, and each test that must catch one exists."""

import pytest

from aftershock.tests.mutants.run import ROOT, Mutant, table


@pytest.mark.parametrize("mutant", table(), ids=lambda mutant: mutant.name)
def test_it_can_be_planted_and_caught(mutant: Mutant) -> None:
    sound = (ROOT / mutant.file).read_text()
    assert sound != mutant.planted(sound)
    assert mutant.tests
    for test in mutant.tests:
        path, name, *_ = [*test.partition("[")[0].split("::"), ""]
        assert name in (ROOT / path).read_text()
