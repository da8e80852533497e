"""The result tables of ``docs/KIPS.md``, and their digest in the README, from the trials stored under a folder.

``python -m aftershock.harness.trials.table OUT PAGE README``. Rules: nothing is run; a trial without any run has one
line that says so; what stands between the two marks is replaced, and nothing else of a page.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from aftershock.errors import AftershockError
from aftershock.harness.trials.catalogue import TRIALS
from aftershock.harness.trials.runner import home_of
from aftershock.harness.trials.told import Told, tell
from aftershock.results.files import write_whole
from aftershock.results.trials import shown

BEGIN = "<!-- results: written by `make kips` from stored evidence -->"
END = "<!-- results end -->"
_HEAD = "| | claim | published | ours | asked | word |\n| --- | --- | --- | --- | --- | --- |"


def digest(trials: list[Told]) -> str:
    """A row a trial: its first claim, its word, and how many claims hold. In Markdown."""
    rows = [_row(told) for told in trials]
    return "\n".join(["| KIP | its first claim | published | ours | the trial |", "|" + " --- |" * 5, *rows])


def table(trials: list[Told]) -> str:
    """A heading and a table a trial, in Markdown."""
    return "\n".join(line for told in trials for line in _trial(told))


def put(page: str, results: str) -> str:
    """The page with new results between its marks. AftershockError where it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise AftershockError(f"the page lacks {BEGIN} and {END}: put both where the table belongs")
    return f"{before}{BEGIN}\n\n{results}\n\n{END}{after}"


def main(out: str, page: str, readme: str) -> None:
    """Replace the results in ``page``, and their digest in ``readme``, by those under ``out``."""
    told = [tell(trial, home_of(trial, Path(out))) for trial in TRIALS.values()]
    for path, results in ((Path(page), table(told)), (Path(readme), digest(told))):
        write_whole(path, put(path.read_text(encoding="utf-8"), results))


def _row(told: Told) -> str:
    first, words = told.statements[0], [one.word for one in told.statements if one.role == "claim"]
    whole = f"{told.verdict.word}: {words.count('confirmed')} of {len(words)} claims confirmed"
    ours = shown.figure(first.ours), whole if told.parts else "not run"
    return _cells((f"{told.kip}, {told.title}", first.claim, first.published, *ours))


def _cells(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _trial(told: Told) -> Iterator[str]:
    if not told.parts:
        yield f"### KIP-{told.kip}, {told.title}: not run yet\n"
        return
    yield f"### KIP-{told.kip}, {told.title}: {told.verdict.word}\n"
    yield f"{told.verdict.why}.\n"
    yield _HEAD
    for one in told.statements:
        yield _cells((one.role, one.claim, one.published, shown.figure(one.ours), one.bound, shown.word(one)))
    yield ""
    yield from (f"* not run: {name}: {why}" for name, why in told.left_out.items())
    yield from (f"* {said}" for said in (*told.shortened, *told.about))
    yield ""


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except AftershockError as error:
        sys.exit(str(error))
