"""Planted bugs: each original text occurs once in the code, and each test that must find the bug exists."""

import pytest

from aftershock.tests.mutants.run import ROOT, Mutant, table


@pytest.mark.parametrize("mutant", table(), ids=lambda mutant: mutant.name)
def test_mutants_match_the_code_and_name_existing_tests(mutant: Mutant) -> None:
    sound = (ROOT / mutant.file).read_text()
    assert sound != mutant.planted(sound)
    assert mutant.tests
    for test in mutant.tests:
        path, name, *_ = [*test.partition("[")[0].split("::"), ""]
        assert name in (ROOT / path).read_text()
