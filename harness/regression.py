"""``regression.patch``: what a red night offers, for ``git apply``: the plans that failed, frozen, and a test for each.

::

    tests/regressions/<name>/plan.yaml         as it failed
                             timeline.json     what that seed made of it
                             test_<name>.py    holds the two together, and runs the plan

The test is red until what it found is mended. Pure: entries of the corpus in, the patch as text out.
"""

import re
from collections.abc import Iterable, Iterator

from aftershock.faults.check import load_plan
from aftershock.faults.compile import compile_plan
from aftershock.harness.corpus import Entry

NAME = "regression.patch"
_FOLDER = "tests/regressions"
_TEST = '''"""Found on {night} by `aftershock explore`, seed {seed}: {failed}."""

from pathlib import Path

import pytest

from aftershock.faults.check import load_plan
from aftershock.faults.compile import compile_plan
from aftershock.faults.timeline import from_json
from aftershock.harness.suite.chaos import Chaos

HERE = Path(__file__).parent
SEED = {seed}


def test_the_plan_is_still_the_one_that_failed() -> None:
    """The same plan and seed still strike whom they struck, when they did."""
    checked = load_plan(HERE / "plan.yaml")
    now = compile_plan(checked.plan, SEED, checked.source, checked.slo_positions)
    assert from_json((HERE / "timeline.json").read_bytes()).steps == from_json(now.to_json()).steps


@pytest.mark.engine
@pytest.mark.nightly
def test_{name}(chaos: Chaos) -> None:
    """It failed {failed}; it must not again."""
    chaos.run(HERE / "plan.yaml", seed=SEED{allowed})
'''


def patch(entries: Iterable[Entry]) -> str:
    """New files for each; "" for none."""
    return "".join(_added(path, text) for entry in entries for path, text in _files(entry))


def _files(entry: Entry) -> Iterator[tuple[str, str]]:
    checked = load_plan(entry.text)
    frozen = compile_plan(checked.plan, entry.found.seed, "plan.yaml", checked.slo_positions)
    name = re.sub(r"\W+", "_", entry.path.stem)
    own = any(arm.client == "exec" for workload in checked.plan.workloads for arm in workload.arms.values())
    said = {"name": name, "seed": entry.found.seed, "night": entry.found.night, "failed": ", ".join(entry.found.failed)}
    yield f"{_FOLDER}/{name}/plan.yaml", entry.text
    yield f"{_FOLDER}/{name}/timeline.json", frozen.to_json().decode()
    yield f"{_FOLDER}/{name}/test_{name}.py", _TEST.format(**said, allowed=", allow_exec=True" if own else "")


def _added(path: str, text: str) -> str:
    """One file in git's format for a patch."""
    lines = text.splitlines()
    head = (
        f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,{len(lines)} @@\n"
    )
    return head + "".join(f"+{line}\n" for line in lines)
