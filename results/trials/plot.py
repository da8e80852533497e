"""A picture of a trial's report page, with the line under it that says what to see in it."""

from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True)
class Plot:
    """``svg`` as ``results.report.svg.rendered`` makes it; its name is unique in the page."""

    title: str
    svg: Markup
    reading: str
