"""An entry of a plan's ``slo``: a line of the language, or one with ``gate: report``, which is watched and no more."""

from typing import Literal

from aftershock.faults.part import Part

Gate = Literal["verdict", "report"]


class SloEntry(Part):
    """``gate``: whether the run's verdict hangs on it, or the report alone shows it."""

    slo: str
    gate: Gate = "verdict"
