"""Story of a run and history of a record, as JSON data, plain text and Markdown.

The story has an introduction, a chapter for each fault in order of time, obligations, and the slowest records. The
plain text of a story has at most 80 columns and no colours, so that it can be piped. An example of a chapter is

::

    kill-1: kill, by the plan, on broker 1 in rack a                  26.0 to 34.0 s
      26.040 s   +0.040  the fault is injected; the action took 0.040 s
      29.003 s   +3.003  arm=a produce: first success again, after 2.931 s without a success
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from aftershock.results.checks.obligations.lanes import Lane, lanes
from aftershock.results.evidence.evidence import Evidence, read
from aftershock.results.evidence.stored import analysis_of, older_version_note, trusted_in, verdict_of
from aftershock.results.explain.chapter import Chapter, chapter
from aftershock.results.explain.events import Moment, forces
from aftershock.results.explain.leaders import reigns
from aftershock.results.explain.record import Part, RecordHistory, Tale, slowest
from aftershock.results.model.check import Status, Verdict
from aftershock.results.model.text import cell, explained, explanation, milliseconds, printable, sentence, table


@dataclass(frozen=True)
class Story:
    """Story of a run.

    ``promises`` are its obligation checks, ``explained`` the losses and other anomalies that have a cause, ``missing``
    is why the slowest records are unknown.
    """

    run_id: str
    sentence: str
    opening: tuple[Moment, ...]
    chapters: tuple[Chapter, ...]
    promises: tuple[str, ...]
    explained: tuple[str, ...]
    slowest: tuple[Tale, ...] | None
    labels: Mapping[str, str]
    missing: str | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def story(home: Path) -> Story:
    """Return the story of the judged run in directory ``home``. Raises EvidenceError if the run was not judged."""
    return build_story(read(home, {}, trusted_in(home)), verdict_of(home), analysis_of(home))


def build_story(
    evidence: Evidence,
    verdict: Verdict,
    analysis: Mapping[str, Any],
    chapters_max: int | None = None,
    obligations: Sequence[Lane] | None = None,
) -> Story:
    """Return the story of a judged run; ``obligations`` are its ``lanes``, if the caller has them already."""
    marks, names, faults = evidence.run.get("marks") or {}, evidence.labels, forces(evidence)
    opening = []
    if marks.get("load_start_us") is not None:
        opening.append(Moment(marks["load_start_us"], "load starts"))
    if marks.get("steady_start_us") is not None:
        why = (evidence.run.get("warmup") or {}).get("why")
        opening.append(Moment(marks["steady_start_us"], f"warm-up ends{f': {why}' if why else ''}"))
    if marks.get("faults_start_us") is not None:
        steady = "; ".join(
            f"{names.get(row['client'], row['client'])} p95 {row['at']['0.95'] / 1e3:.4g} ms"
            for row in analysis["distributions"]
            if (row["metric"], row["window"]) == ("produce.latency", "steady") and row["at"].get("0.95") is not None
        )
        opening.append(Moment(marks["faults_start_us"], f"steady phase ends{f': {steady}' if steady else ''}"))

    obligations, leaders = lanes(evidence) if obligations is None else obligations, reigns(evidence)
    starts_us = [force.window_us[0] for force in faults if force.window_us]
    chapters = []
    for force in sorted(faults, key=lambda force: (force.window_us is None, force.window_us or (0, 0)))[:chapters_max]:
        start_us = force.window_us[0] if force.window_us else 0
        load_end_us = marks.get("load_end_us") or 1 << 62
        until_us = min((at_us for at_us in starts_us if at_us > start_us), default=load_end_us)
        chapters.append(chapter(evidence, analysis, force, until_us, obligations, leaders))

    results = {Status.PASS: "held", Status.FAIL: "BROKEN"}
    promises = [
        f"{check.id} {check.subject}: {results.get(check.status, 'undecided')}: {check.why}"
        for check in verdict.checks
        if check.kind == "obligation"
    ]
    slow = slowest(evidence, analysis, faults)
    return Story(
        run_id=verdict.run_id,
        sentence=". ".join([sentence(verdict), *verdict.unplanned]),
        opening=tuple(opening),
        chapters=tuple(chapters),
        promises=tuple(promises),
        explained=tuple(explanation(check, part) for check, part in explained(verdict)),
        slowest=slow,
        labels=names,
        missing=None if slow is not None else older_version_note(evidence.home, "the slowest records"),
    )


def parts(budget: Sequence[Part]) -> str:
    """Format the parts of a record's latency, as in ``schedule lag 0.2 ms, in the client or broker 41 ms``."""
    return ", ".join(f"{part.name} {milliseconds(part.us)} ms" for part in budget)


def headline(tale: Tale, story: Story) -> str:
    """Format the headline of a slow record, as in ``1:1580 of arm=a, produce, orders/8: 2234 ms, due at 45.281 s``."""
    record = tale.record
    client = story.labels.get(record.client, record.client)
    where = f", {record.topic}/{record.partition}" if record.partition is not None else ""
    latency = "no result" if record.latency_us is None else f"{milliseconds(record.latency_us)} ms"
    status = "" if record.status == "ok" else f", {record.status}{f' ({record.error})' if record.error else ''}"
    due = f"due at {record.intended_us / 1e6:.3f} s"
    return f"{record.name} of {client}, {record.op}{where}: {latency}{status}, {due}"


WIDTH = 80
_TEXT_COLUMN = 22
_EXPLAINED = "Losses and other anomalies that have a cause"


def story_text(story: Story) -> str:
    blocks = [_filled(story.sentence), _moment_lines(story.opening, None)]
    for part in story.chapters:
        when = "" if part.start_us is None else f", {part.start_us / 1e6:.1f} to {(part.end_us or 0) / 1e6:.1f} s"
        lines = [_filled(f"{part.fault}: {part.what}{when}"), _moment_lines(part.moments, part.start_us)]
        blocks.append("\n".join(line for line in [*lines, *(_filled(note, 2) for note in part.notes)] if line))
    for title, texts in (("Obligations", story.promises), (_EXPLAINED, story.explained)):
        if texts:
            blocks.append("\n".join([title, *(_filled(text, 2) for text in texts)]))
    if story.slowest is None:
        blocks.append(_filled(story.missing or ""))
    else:
        lines = ["The slowest records" if story.slowest else "No record was observed after warm-up."]
        for number, tale in enumerate(story.slowest, 1):
            lines.append(fill(printable(f"{number:>2}. {headline(tale, story)}"), WIDTH, subsequent_indent="    "))
            lines += _causes(tale)
        blocks.append("\n".join(lines))
    return "\n\n".join(block for block in blocks if block) + "\n"


def record_text(history: RecordHistory) -> str:
    if history.missing:
        return _filled(history.missing) + "\n"
    first_us = history.moments[0].at_us if history.moments else None
    blocks = [f"Record {history.name}", _moment_lines(history.moments, first_us)]
    blocks += [_filled(note, 2) for note in history.notes]
    blocks += _causes(history.tale) if history.tale else []
    return "\n".join(block for block in blocks if block) + "\n"


def _moment_lines(moments: Sequence[Moment], since_us: int | None) -> str:
    lines = []
    for moment in moments:
        after = "" if since_us is None else f"{(moment.at_us - since_us) / 1e6:+9.3f}"
        stamp = f"{moment.at_us / 1e6:9.3f} s {after:<9}".ljust(_TEXT_COLUMN)
        indent = " " * _TEXT_COLUMN
        text = printable(str(moment))
        lines.append(fill(text, WIDTH, initial_indent=stamp, subsequent_indent=indent, break_on_hyphens=False))
    return "\n".join(lines)


def _causes(tale: Tale) -> list[str]:
    return [_filled(text, 4) for text in (parts(tale.parts), *tale.notes) if text]


def _filled(text: str, indent: int = 0) -> str:
    later = " " * (indent + 2 * bool(indent))
    return fill(printable(text), WIDTH, initial_indent=" " * indent, subsequent_indent=later)


def story_markdown(story: Story) -> str:
    lines = [f"**{cell(story.sentence)}**\n\n", *_moment_table(story.opening, 0)]
    for part in story.chapters:
        lines += [
            f"\n### {cell(part.fault)}\n\n{cell(part.what)}\n\n",
            *_moment_table(part.moments, part.start_us or 0),
        ]
        lines += ["\n", *(f"- {cell(note)}\n" for note in part.notes)]
    for title, texts in (("Obligations", story.promises), (_EXPLAINED, story.explained)):
        if texts:
            lines += [f"\n### {title}\n\n", *(f"- {cell(text)}\n" for text in texts)]
    lines.append("\n### The slowest records\n\n")
    if story.slowest is None:
        lines.append(f"{cell(story.missing or '')}\n")
    else:
        rows = [(headline(tale, story), parts(tale.parts), "; ".join(tale.notes)) for tale in story.slowest]
        lines += table(("record", "where its time went", "faults"), rows)
    return "".join(lines)


def record_markdown(history: RecordHistory) -> str:
    if history.missing:
        return f"{cell(history.missing)}\n"
    since_us = history.moments[0].at_us if history.moments else 0
    lines = [f"### Record {cell(history.name)}\n\n", *_moment_table(history.moments, since_us), "\n"]
    causes = [parts(history.tale.parts), *history.tale.notes] if history.tale else []
    return "".join([*lines, *(f"- {cell(note)}\n" for note in [*history.notes, *causes] if note)])


def _moment_table(moments: Sequence[Moment], since_us: int) -> Iterator[str]:
    if moments:
        rows = [(f"{m.at_us / 1e6:.3f} s", f"{(m.at_us - since_us) / 1e6:+.3f} s", str(m)) for m in moments]
        yield from table(("at", "after", "what"), rows)
