"""The story of a run, told from its evidence: what was broken, what each client saw of it, and why a record was slow.

Rules: nothing is measured here and nothing judged; the figures are those of ``analysis.json`` and ``verdict.json``.
What the evidence can't tell apart is not told apart.
"""

from aftershock.results.explain.markdown import record_markdown, story_markdown
from aftershock.results.explain.record import Followed, followed
from aftershock.results.explain.story import Story, story
from aftershock.results.explain.text import record_text, story_text

__all__ = ["Followed", "Story", "followed", "record_markdown", "record_text", "story", "story_markdown", "story_text"]
