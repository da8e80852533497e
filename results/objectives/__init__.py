"""SLOs judged by what was measured: ``wanted`` says what has to be, ``objectives`` makes the checks of it. Pure."""

from aftershock.results.objectives.judged import Doubts, objectives
from aftershock.results.objectives.want import wanted

__all__ = ["Doubts", "objectives", "wanted"]
