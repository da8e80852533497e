"""The story as Markdown, for a pull request or an issue: a table a fault, and a table of the slowest records."""

from collections.abc import Iterator, Sequence

from aftershock.results.explain.moment import Moment
from aftershock.results.explain.record import Followed
from aftershock.results.explain.story import Story
from aftershock.results.explain.text import headline, parts
from aftershock.results.marked import cell, table

_TIMES = ("at", "after", "what")
_SLOWEST = ("record", "where its time went", "faults")


def story_markdown(story: Story) -> str:
    """The whole story."""
    return "".join(_story(story))


def record_markdown(found: Followed) -> str:
    """One record's way."""
    if found.missing:
        return f"{cell(found.missing)}\n"
    since_us = found.moments[0].at_us if found.moments else 0
    lines = [f"### Record {cell(found.name)}\n\n", *_moments(found.moments, since_us), "\n"]
    causes = [parts(found.tale.parts), *found.tale.notes] if found.tale else []
    return "".join([*lines, *(f"- {cell(note)}\n" for note in [*found.notes, *causes] if note)])


def _story(story: Story) -> Iterator[str]:
    yield f"**{cell(story.sentence)}**\n\n"
    yield from _moments(story.opening, 0)
    for chapter in story.chapters:
        yield f"\n### {cell(chapter.fault)}\n\n{cell(chapter.what)}\n\n"
        yield from _moments(chapter.moments, chapter.start_us or 0)
        yield "\n"
        yield from (f"- {cell(note)}\n" for note in chapter.notes)
    if story.promises:
        yield "\n### What was owed\n\n"
        yield from (f"- {cell(promise)}\n" for promise in story.promises)
    yield "\n### The slowest records\n\n"
    if story.slowest is None:
        yield f"{cell(story.missing or '')}\n"
    else:
        yield from table(_SLOWEST, [_row(story, index) for index in range(len(story.slowest))])


def _row(story: Story, index: int) -> tuple[str, str, str]:
    tale = (story.slowest or ())[index]
    whose = story.labels.get(tale.record.client, tale.record.client)
    return headline(tale, whose), parts(tale.parts), "; ".join(tale.notes)


def _moments(moments: Sequence[Moment], since_us: int) -> Iterator[str]:
    if moments:
        yield from table(
            _TIMES,
            [(f"{one.at_us / 1e6:.3f} s", f"{(one.at_us - since_us) / 1e6:+.3f} s", one.said) for one in moments],
        )
