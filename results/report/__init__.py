"""The report: one HTML file that needs no network and no script, or Markdown; and an index over many."""

from aftershock.results.report.index import write_index
from aftershock.results.report.markdown import markdown, step_summary
from aftershock.results.report.page import write

__all__ = ["markdown", "step_summary", "write", "write_index"]
