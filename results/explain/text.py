"""The story as plain text: no line wider than 80 columns, no colours, so that it can be piped.

::

    kill-1: kill, by the plan, on broker 1 in rack a                  26.0 to 34.0 s
      26.040 s   +0.040  injected, 0.040 s after it was begun
      29.003 s   +3.003  arm=a produce: first success again, after 2.931 s without any
"""

from collections.abc import Iterator, Sequence
from textwrap import fill

from aftershock.results.explain.budget import Part
from aftershock.results.explain.chapter import Chapter
from aftershock.results.explain.moment import Moment
from aftershock.results.explain.record import Followed
from aftershock.results.explain.slow import Tale
from aftershock.results.explain.story import Story
from aftershock.results.shown import milliseconds, printable

WIDTH = 80
_TEXT_AT = 22


def story_text(story: Story) -> str:
    """The whole story, with a newline at its end."""
    blocks = [_filled(story.sentence), _lines(story.opening, None), *map(_chapter, story.chapters)]
    if story.promises:
        blocks.append("\n".join(["What was owed", *(_filled(promise, 2) for promise in story.promises)]))
    blocks.append("\n".join(_slowest(story)))
    return "\n\n".join(block for block in blocks if block) + "\n"


def record_text(found: Followed) -> str:
    """One record's way, with a newline at its end."""
    if found.missing:
        return _filled(found.missing) + "\n"
    first_us = found.moments[0].at_us if found.moments else None
    blocks = [f"Record {found.name}", _lines(found.moments, first_us), *(_filled(note, 2) for note in found.notes)]
    blocks += ["\n".join(_causes(found.tale))] if found.tale else []
    return "\n".join(block for block in blocks if block) + "\n"


def latency(tale: Tale) -> str:
    """``2234 ms``, or that it never ended."""
    ended = tale.record.latency_us is not None
    return f"{milliseconds(tale.record.latency_us)} ms" if ended else "never ended"


def parts(found: Sequence[Part]) -> str:
    """``schedule lag 0.2 ms, in the client or broker 41 ms``."""
    return ", ".join(f"{part.name} {milliseconds(part.us)} ms" for part in found)


def headline(tale: Tale, whose: str) -> str:
    """``1:1580 of arm=metadata, produce, orders/8: 2234 ms, wanted at 45.281 s``."""
    one = tale.record
    where = f", {one.topic}/{one.partition}" if one.partition is not None else ""
    status = "" if one.status == "ok" else f", {one.status}{f' ({one.error})' if one.error else ''}"
    told = f"{one.name} of {whose}, {one.op}{where}: {latency(tale)}{status}"
    return f"{told}, wanted at {one.intended_us / 1e6:.3f} s"


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
    yield "The slowest records" if story.slowest else "No record was seen after warm-up."
    for number, tale in enumerate(story.slowest, 1):
        whose = story.labels.get(tale.record.client, tale.record.client)
        yield fill(printable(f"{number:>2}. {headline(tale, whose)}"), WIDTH, subsequent_indent="    ")
        yield from _causes(tale)


def _causes(tale: Tale) -> Iterator[str]:
    if tale.parts:
        yield _filled(parts(tale.parts), 4)
    yield from (_filled(note, 4) for note in tale.notes)


def _filled(text: str, indent: int = 0) -> str:
    return fill(
        printable(text), WIDTH, initial_indent=" " * indent, subsequent_indent=" " * (indent + 2 * bool(indent))
    )
