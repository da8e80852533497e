"""The report: one HTML file that needs no network and no script, or Markdown; of many runs also an index."""

from aftershock.results.report.index import write_index
from aftershock.results.report.markdown import markdown, step_summary
from aftershock.results.report.page import write
from aftershock.results.report.side import write_comparison

__all__ = ["markdown", "step_summary", "write", "write_comparison", "write_index"]
