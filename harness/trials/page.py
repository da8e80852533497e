"""The report page of a trial, ``kip-951.html`` beside its runs: one file, without a script."""

from pathlib import Path

from aftershock.harness.trials.told import Told
from aftershock.harness.trials.trial import Trial
from aftershock.results.files import write_whole
from aftershock.results.report.side import link
from aftershock.results.report.template import filled
from aftershock.results.trials import shown
from aftershock.results.trials.statement import Word

_HEADERS: dict[Word, str] = {
    "confirmed": "pass",
    "contradicted": "fail",
    "not seen": "inconclusive",
    "inconclusive": "inconclusive",
}


def write(trial: Trial, told: Told, home: Path) -> Path:
    """Writes the page and returns its path."""
    runs = [(name, part.run.run_id, link(part.home / "report.html", home)) for name, part in told.parts.items()]
    sound = {name: part for name, part in told.parts.items() if part.doubt() is None}
    page = filled(
        "trial.html",
        kip=told.kip,
        title=told.title,
        verdict=told.verdict,
        status=_HEADERS[told.verdict.word],
        statements=told.statements,
        plots=trial.plots(sound),
        runs=runs,
        left_out=list(told.left_out.items()),
        shortened=told.shortened,
        about=told.about,
        figure=shown.figure,
        word=shown.word,
    )
    return write_whole(home / f"kip-{told.kip}.html", page)
