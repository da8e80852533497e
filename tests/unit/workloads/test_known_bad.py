"""The known-bad clients are what the plans say; what they do wrong is for tests/chaos/test_known_bad.py to show."""

import subprocess
import sys

from aftershock.tests.chaos.known_bad.catalogue import known_bad, plan

PLANT_ALL = """
from aftershock.tests.chaos.known_bad.catalogue import known_bad
for bad in known_bad().values():
    bad.plant()
"""


def test_there_are_fifteen_and_each_is_in_a_plan() -> None:
    """None that no plan brings out, and each says what it does."""
    texts = plan("answers").read_text() + plan("leaders").read_text()
    assert len(known_bad()) >= 15
    assert [] == [name for name in known_bad() if f"\n      {name}: " not in texts]
    assert all(bad.what and bad.fault and bad.caught and bad.says for bad in known_bad().values())


def test_no_defect_has_gone_stale() -> None:
    """Each finds what it takes the place of: in a process of its own, for it stays planted."""
    planted = subprocess.run([sys.executable, "-P", "-c", PLANT_ALL], check=False, capture_output=True, text=True)
    assert "" == planted.stderr
    assert 0 == planted.returncode
