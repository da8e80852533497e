"""Compare all figures of real runs with their second readings, and write the table into ``docs/SLO.md``.

``python -m aftershock.tests.readings [--docs docs/SLO.md] RUN…`` takes run directories and packs; without any it takes
those of the repository. The exit code is 1 if a figure differs.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from zipfile import ZipFile

from aftershock.results.spark.conf import load_of
from aftershock.results.spark.session import session
from aftershock.tests.readings.compare import Comparison, compare

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- second readings: begin -->", "<!-- second readings: end -->"
BATCH = 2
"""Runs that are judged together, so that a small machine has the memory for it."""


def stored_runs() -> list[Path]:
    """Return the run directories and packs in the repository that have all tables."""
    return [*sorted((ROOT / "tests/data/evidence").glob("*/")), *sorted((ROOT / "docs/evidence/packs").glob("*.zip"))]


def unpacked(paths: Iterable[Path], scratch: Path) -> dict[str, Path]:
    """Return run directories by name; packs are unpacked into ``scratch``."""
    homes = {}
    for path in paths:
        name = path.name.partition(".")[0]
        name = f"{name} (pack)" if name in homes else name
        homes[name] = path
        if path.is_file():
            homes[name] = scratch / f"{len(homes)}"
            with ZipFile(path) as pack:
                pack.extractall(homes[name])
    return homes


def comparisons(homes: Mapping[str, Path], log: Path) -> Iterator[Comparison]:
    names = list(homes)
    for first in range(0, len(names), BATCH):
        some = {name: homes[name] for name in names[first : first + BATCH]}
        with session(log, load=load_of(part for home in some.values() for part in home.glob("*/*.parquet"))) as spark:
            yield from compare(spark, some)
        sys.stderr.write(f"compared: {', '.join(some)}\n")


def table(found: Sequence[Comparison]) -> list[str]:
    """Return the lines of a Markdown table by metric."""
    figures, equal, runs = Counter[str](), Counter[str](), dict[str, set[str]]()
    for one in found:
        name = metric_name(one)
        runs.setdefault(name, set()).add(one.run)
        figures[name] += 1
        equal[name] += one.equal
    rows = [f"| `{name}` | {len(runs[name])} | {figures[name]:,} | {equal[name]:,} |" for name in sorted(figures)]
    total = f"| all | {len({one.run for one in found})} | {figures.total():,} | {equal.total():,} |"
    return ["| metric | runs | figures compared | equal |", "|---|---|---|---|", *rows, total]


def metric_name(one: Comparison) -> str:
    asked = one.judged.asked
    return f"{asked.family} for each {asked.by}" if asked.by else asked.family


def write_table(page: Path, lines: Sequence[str]) -> None:
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--docs", type=Path, help="write the table into this page")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        homes = unpacked(options.runs or stored_runs(), Path(folder))
        found = list(comparisons(homes, Path(folder) / "spark.log"))
    lines = table(found)
    print("\n".join(lines))
    if options.docs:
        names = ", ".join(f"`{name}`" for name in homes)
        write_table(options.docs, [f"Runs: {names}.", "", *lines])
    differing = [one for one in found if not one.equal]
    for one in differing:
        print(one)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
