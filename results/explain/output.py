"""Story of a run and history of a record, as data, plain text and Markdown.

The story: how the run began, a chapter for each fault in order of time, obligations, the slowest records. Plain text
has no line wider than 80 columns and no colours, so that it can be piped:

::

    kill-1: kill, by the plan, on broker 1 in rack a                  26.0 to 34.0 s
      26.040 s   +0.040  injected; the action took 0.040 s
      29.003 s   +3.003  arm=a produce: first success again, after 2.931 s without any

Markdown, for a pull request or an issue, has a table per fault and a table of the slowest records.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from aftershock.results.checks.check import Status, Verdict
from aftershock.results.checks.obligations.stalls import lanes
from aftershock.results.evidence.evidence import Evidence, read
from aftershock.results.evidence.stored import analysis_of, older_version_note, verdict_of
from aftershock.results.explain.chapter import Chapter, chapter, labels
from aftershock.results.explain.events import Force, Moment, forces
from aftershock.results.explain.record import RecordHistory
from aftershock.results.explain.slow import Part, Tale, slowest
from aftershock.results.text import cell, milliseconds, printable, sentence, table


@dataclass(frozen=True)
class Story:
    """Story of a run. ``promises``: obligation checks. ``slowest`` is None for an older run, ``missing`` says why."""

    run_id: str
    sentence: str
    opening: tuple[Moment, ...]
    chapters: tuple[Chapter, ...]
    promises: tuple[str, ...]
    slowest: tuple[Tale, ...] | None
    labels: Mapping[str, str]
    missing: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the story as plain data."""
        return asdict(self)


def story(home: Path) -> Story:
    """Return the story of the judged run in ``home``. Raises EvidenceError if it was not judged."""
    return build_story(read(home, {}), verdict_of(home), analysis_of(home))


def build_story(evidence: Evidence, verdict: Verdict, analysis: Mapping[str, Any]) -> Story:
    """Return the story of evidence, verdict and analysis that are already read."""
    known = forces(evidence)
    slow = slowest(evidence, analysis, known)
    return Story(
        run_id=verdict.run_id,
        sentence=sentence(verdict),
        opening=tuple(_opening(evidence, analysis)),
        chapters=tuple(_chapters(evidence, analysis, known)),
        promises=tuple(_promises(verdict)),
        slowest=slow,
        labels=labels(evidence),
        missing=None if slow is not None else older_version_note(evidence.home, "the slowest records"),
    )


def _chapters(evidence: Evidence, analysis: Mapping[str, Any], known: Sequence[Force]) -> Iterator[Chapter]:
    owed = lanes(evidence)
    load_end_us = (evidence.run.get("marks") or {}).get("load_end_us") or 1 << 62
    begun = sorted((force for force in known if force.window_us), key=lambda force: force.window_us or (0, 0))
    starts_us = [force.window_us[0] for force in begun if force.window_us]
    for force in [*begun, *(force for force in known if not force.window_us)]:
        start_us = force.window_us[0] if force.window_us else 0
        until_us = min((at_us for at_us in starts_us if at_us > start_us), default=load_end_us)
        yield chapter(evidence, analysis, force, until_us, owed)


def _opening(evidence: Evidence, analysis: Mapping[str, Any]) -> Iterator[Moment]:
    marks = evidence.run.get("marks") or {}
    if marks.get("load_start_us") is not None:
        yield Moment(marks["load_start_us"], "load starts")
    if marks.get("steady_start_us") is not None:
        why = (evidence.run.get("warmup") or {}).get("why")
        yield Moment(marks["steady_start_us"], f"warm-up ends{f': {why}' if why else ''}")
    if marks.get("faults_start_us") is not None:
        calm = "; ".join(_steady(evidence, analysis))
        yield Moment(marks["faults_start_us"], f"steady phase ends{f': {calm}' if calm else ''}")


def _steady(evidence: Evidence, analysis: Mapping[str, Any]) -> Iterator[str]:
    named = labels(evidence)
    for row in analysis["distributions"]:
        if (row["metric"], row["window"]) == ("produce.latency", "steady") and row["at"].get("0.95") is not None:
            yield f"{named.get(row['client'], row['client'])} p95 {row['at']['0.95'] / 1e3:.4g} ms"


def _promises(verdict: Verdict) -> Iterator[str]:
    words = {Status.PASS: "held", Status.FAIL: "BROKEN"}
    for check in verdict.checks:
        if check.kind == "obligation":
            yield f"{check.id} {check.subject}: {words.get(check.status, 'undecided')}: {check.why}"


WIDTH = 80
_TEXT_AT = 22


def story_text(story: Story) -> str:
    """Return the story as plain text, with a newline at its end."""
    blocks = [_filled(story.sentence), _lines(story.opening, None), *map(_chapter, story.chapters)]
    if story.promises:
        blocks.append("\n".join(["Obligations", *(_filled(promise, 2) for promise in story.promises)]))
    blocks.append("\n".join(_slowest(story)))
    return "\n\n".join(block for block in blocks if block) + "\n"


def record_text(found: RecordHistory) -> str:
    """Return a record's history as plain text, with a newline at its end."""
    if found.missing:
        return _filled(found.missing) + "\n"
    first_us = found.moments[0].at_us if found.moments else None
    blocks = [f"Record {found.name}", _lines(found.moments, first_us), *(_filled(note, 2) for note in found.notes)]
    blocks += ["\n".join(_causes(found.tale))] if found.tale else []
    return "\n".join(block for block in blocks if block) + "\n"


def latency(tale: Tale) -> str:
    """Return ``2234 ms``, or ``never ended``."""
    ended = tale.record.latency_us is not None
    return f"{milliseconds(tale.record.latency_us)} ms" if ended else "never ended"


def parts(budget: Sequence[Part]) -> str:
    """Return ``schedule lag 0.2 ms, in the client or broker 41 ms``."""
    return ", ".join(f"{part.name} {milliseconds(part.us)} ms" for part in budget)


def headline(tale: Tale, client: str) -> str:
    """Return ``1:1580 of arm=metadata, produce, orders/8: 2234 ms, due at 45.281 s``."""
    record = tale.record
    where = f", {record.topic}/{record.partition}" if record.partition is not None else ""
    status = "" if record.status == "ok" else f", {record.status}{f' ({record.error})' if record.error else ''}"
    due = f"due at {record.intended_us / 1e6:.3f} s"
    return f"{record.name} of {client}, {record.op}{where}: {latency(tale)}{status}, {due}"


def _chapter(chapter: Chapter) -> str:
    when = "" if chapter.start_us is None else f", {chapter.start_us / 1e6:.1f} to {(chapter.end_us or 0) / 1e6:.1f} s"
    lines = [_filled(f"{chapter.fault}: {chapter.what}{when}"), _lines(chapter.moments, chapter.start_us)]
    return "\n".join(line for line in [*lines, *(_filled(note, 2) for note in chapter.notes)] if line)


def _lines(moments: Sequence[Moment], since_us: int | None) -> str:
    return "\n".join(_line(moment, since_us) for moment in moments)


def _line(moment: Moment, since_us: int | None) -> str:
    after = "" if since_us is None else f"{(moment.at_us - since_us) / 1e6:+9.3f}"
    stamp = f"{moment.at_us / 1e6:9.3f} s {after:<9}".ljust(_TEXT_AT)
    return fill(
        printable(moment.said), WIDTH, initial_indent=stamp, subsequent_indent=" " * _TEXT_AT, break_on_hyphens=False
    )


def _slowest(story: Story) -> Iterator[str]:
    if story.slowest is None:
        yield _filled(story.missing or "")
        return
    yield "The slowest records" if story.slowest else "No record was observed after warm-up."
    for number, tale in enumerate(story.slowest, 1):
        client = story.labels.get(tale.record.client, tale.record.client)
        yield fill(printable(f"{number:>2}. {headline(tale, client)}"), WIDTH, subsequent_indent="    ")
        yield from _causes(tale)


def _causes(tale: Tale) -> Iterator[str]:
    if tale.parts:
        yield _filled(parts(tale.parts), 4)
    yield from (_filled(note, 4) for note in tale.notes)


def _filled(text: str, indent: int = 0) -> str:
    return fill(
        printable(text), WIDTH, initial_indent=" " * indent, subsequent_indent=" " * (indent + 2 * bool(indent))
    )


_TIMES = ("at", "after", "what")
_SLOWEST = ("record", "where its time went", "faults")


def story_markdown(story: Story) -> str:
    """Return the story as Markdown."""
    return "".join(_story(story))


def record_markdown(found: RecordHistory) -> str:
    """Return a record's history as Markdown."""
    if found.missing:
        return f"{cell(found.missing)}\n"
    since_us = found.moments[0].at_us if found.moments else 0
    lines = [f"### Record {cell(found.name)}\n\n", *_moments(found.moments, since_us), "\n"]
    causes = [parts(found.tale.parts), *found.tale.notes] if found.tale else []
    return "".join([*lines, *(f"- {cell(note)}\n" for note in [*found.notes, *causes] if note)])


def _story(story: Story) -> Iterator[str]:
    yield f"**{cell(story.sentence)}**\n\n"
    yield from _moments(story.opening, 0)
    for part in story.chapters:
        yield f"\n### {cell(part.fault)}\n\n{cell(part.what)}\n\n"
        yield from _moments(part.moments, part.start_us or 0)
        yield "\n"
        yield from (f"- {cell(note)}\n" for note in part.notes)
    if story.promises:
        yield "\n### Obligations\n\n"
        yield from (f"- {cell(promise)}\n" for promise in story.promises)
    yield "\n### The slowest records\n\n"
    if story.slowest is None:
        yield f"{cell(story.missing or '')}\n"
    else:
        yield from table(_SLOWEST, [_row(story, index) for index in range(len(story.slowest))])


def _row(story: Story, index: int) -> tuple[str, str, str]:
    tale = (story.slowest or ())[index]
    client = story.labels.get(tale.record.client, tale.record.client)
    return headline(tale, client), parts(tale.parts), "; ".join(tale.notes)


def _moments(moments: Sequence[Moment], since_us: int) -> Iterator[str]:
    if moments:
        yield from table(
            _TIMES,
            [
                (f"{moment.at_us / 1e6:.3f} s", f"{(moment.at_us - since_us) / 1e6:+.3f} s", moment.said)
                for moment in moments
            ],
        )
