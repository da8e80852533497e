"""Plants each bug of ``tests/mutants/*.toml`` and shows the test that catches it: ``make mutants``.

Rules: first every named test must pass as things are; a planted text must be found exactly once, so that a table that
has gone stale is an error and not a bug that nobody planted; a bug is caught when its tests fail, not when they can't
be run. The bugs are planted in copies: this tree isn't touched. Exits with 1 when one is not caught.

``python tests/mutants/run.py [WORD]`` takes only those whose name, KIP or file has WORD in it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[2]
COPIED = (
    *("errors.py", "names.py", "redaction.py", "__init__.py", "pyproject.toml"),
    *("workloads", "results", "faults", "harness", "tests"),
)
AT_ONCE = 2
FAILED = 1  # pytest's exit status when tests ran and some failed
LIMIT_S = 300.0


@dataclass(frozen=True)
class Mutant:
    """One bug: ``replace`` in the place of ``find`` in ``file``; one of ``tests`` must fail for it."""

    name: str
    kip: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]

    def planted(self, text: str) -> str:
        """The file with the bug in it; ``ValueError`` when the place isn't there, or not the only one."""
        if text.count(self.find) != 1:
            raise ValueError(f"{self.name}: its text is {text.count(self.find)} times in {self.file}: mend the table")
        return text.replace(self.find, self.replace)


def table() -> list[Mutant]:
    """Every bug there is, file by file."""
    entries = [
        entry
        for path in sorted(Path(__file__).parent.glob("*.toml"))
        for entry in tomllib.loads(path.read_text())["mutant"]
    ]
    return [Mutant(**entry | {"kip": str(entry["kip"]), "tests": tuple(entry["tests"])}) for entry in entries]


def copy_of_the_tree(home: Path) -> Path:
    """Create a copy that imports and tests like this tree."""
    copy = home / "aftershock"
    copy.mkdir(parents=True)
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, copy / name)
    return copy


def status_of(tests: tuple[str, ...], copy: Path) -> tuple[int, str]:
    """Pytest's exit status on these tests in that copy, and what it printed."""
    environment = os.environ | {"PYTHONPATH": str(copy.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return FAILED, "the tests did not end"
    return done.returncode, done.stdout + done.stderr


def caught(mutant: Mutant, copy: Path) -> str | None:
    """Return the test that failed for the bug; None if none did."""
    path = copy / mutant.file
    sound = path.read_text()
    path.write_text(mutant.planted(sound))
    try:
        status, said = status_of(mutant.tests, copy)
    finally:
        path.write_text(sound)
    if status != FAILED:
        return None
    failures = (line[7:].split(" - ")[0] for line in said.splitlines() if line.startswith("FAILED "))
    return next(failures, "the tests did not end")


def main(word: str) -> int:
    """Plant all bugs and print the table; return 1 if one was not caught."""
    chosen = [mutant for mutant in table() if word in f"{mutant.name} {mutant.kip} {mutant.file}"]
    if not chosen:
        print(f"no planted bug has {word!r} in its name, KIP or file")
        return 1
    with tempfile.TemporaryDirectory(prefix="mutants-") as home:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(AT_ONCE):
            copies.put(copy_of_the_tree(Path(home) / str(number)))

        def judge(mutant: Mutant) -> bool:
            copy = copies.get()
            try:
                test = caught(mutant, copy)
            finally:
                copies.put(copy)
            print(f"{mutant.kip:<6} {mutant.name}\n       {'caught by ' + test if test else 'NOT CAUGHT'}", flush=True)
            return test is not None

        sound = copies.get()
        status, said = status_of(tuple(dict.fromkeys(test for mutant in chosen for test in mutant.tests)), sound)
        copies.put(sound)
        if status:
            print(f"the tests must pass before bugs are planted:\n{said}")
            return 1
        with ThreadPoolExecutor(AT_ONCE) as pool:
            verdicts = list(pool.map(judge, chosen))
    print(f"{sum(verdicts)} of {len(verdicts)} planted bugs were caught")
    return 0 if verdicts and all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
