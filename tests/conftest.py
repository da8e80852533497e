"""Settings that all tests share.

Tests of interrupts send SIGINT to processes that they start. A process whose parent ignores SIGINT ignores it too
(signal(7)), and a shell ignores it in its background jobs (``make test &``). Python's own handler, unlike SIG_IGN, is
not inherited: the children then start with the default action, whatever started pytest.
"""

import signal
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

TIERS = Path(__file__).with_name("tiers.toml")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Sort the given paths, so that the tests of a folder are collected together.

    pytest 9.1 collects a folder anew for each file given on the command line. Between two tests of a subfolder, such a
    file makes the second test lose the fixtures of the subfolder's ``conftest.py`` (pytest issue 14635).
    """
    config.args.sort()


@pytest.hookimpl(tryfirst=True)  # runs before pytest deselects tests by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add the marks that ``tiers.toml`` lists, and group tests by process for pytest-xdist.

    One process runs all tests with a Spark session. Of tests with a Docker engine, one process runs those of each
    folder, which share a cluster.
    """
    for item in items:
        if item.get_closest_marker("engine"):
            item.add_marker(pytest.mark.xdist_group(item.path.relative_to(TIERS.parent).parts[0]))
        if item.get_closest_marker("spark") or "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
            item.add_marker(pytest.mark.xdist_group("spark"))
    tiers = tomllib.loads(TIERS.read_text(encoding="utf-8"))
    for name, group in groupby(items, lambda item: item.nodeid.partition("[")[0]):
        cases = list(group)
        for mark, entries in tiers.items():
            for entry in entries:
                if matches(name, entry["test"]):
                    for case in marked_cases(cases, entry):
                        case.add_marker(mark)


def matches(name: str, test: str) -> bool:
    """Return whether ``test``, a file's name or ``file::function``, names the test with this node id."""
    return f"/{name}".endswith(f"/{test}") or f"/{test}::" in f"/{name}"


def marked_cases(cases: Sequence[pytest.Item], entry: Mapping[str, Any]) -> Iterator[pytest.Item]:
    """Return the cases that get the mark: cases with ``only`` in their parameters, except ``keep`` evenly
    spaced ones.
    """
    kept = {number * len(cases) // entry["keep"] for number in range(entry["keep"])} if "keep" in entry else set()
    for number, case in enumerate(cases):
        if number not in kept and entry.get("only", "") in case.nodeid:
            yield case
