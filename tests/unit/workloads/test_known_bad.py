"""The known-bad clients are what the plans say; what they do wrong is for tests/chaos/test_known_bad.py to show."""

import subprocess
import sys

from aftershock.tests.chaos.known_bad.catalogue import known_bad, plan
from aftershock.tests.chaos.known_bad.table import PLANS
from aftershock.tests.unit.workloads.conftest import Bench

PLANT_ALL = """
from aftershock.tests.chaos.known_bad.catalogue import known_bad
for bad in known_bad().values():
    bad.plant()
"""

WORK = """
import os, runpy
from aftershock.tests.chaos.known_bad import catalogue
def planted(arm):
    os.write(1, b"planted: " + arm.encode())
    os._exit(0)
catalogue.plant = planted
runpy.run_module("aftershock.tests.chaos.known_bad.worker", run_name="__main__")
"""


def test_each_is_in_a_plan() -> None:
    """None that no plan brings out, and each says what it does."""
    texts = "".join(plan(name).read_text() for name in PLANS)
    assert len(known_bad()) >= 38
    assert [] == [name for name in known_bad() if f"\n      {name}: " not in texts]
    assert all(bad.what and bad.fault and bad.caught and bad.says for bad in known_bad().values())


def test_no_defect_has_gone_stale() -> None:
    """Each finds what it takes the place of: in a process of its own, for it stays planted."""
    planted = subprocess.run([sys.executable, "-P", "-c", PLANT_ALL], check=False, capture_output=True, text=True)
    assert "" == planted.stderr
    assert 0 == planted.returncode


def test_a_worker_plants_the_defect_of_its_arm(bench: Bench) -> None:
    """The worker that the known-bad plans start really plants the defect before it makes its client."""
    command = [sys.executable, "-P", "-c", WORK]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdin
        assert worker.stdout
        worker.stdin.write(bench.produce(client="reference", arm="acks_one").model_dump_json() + "\n")
        worker.stdin.flush()
        assert 0 == worker.wait(timeout=60)
        assert "planted: acks_one" == worker.stdout.read()
