"""The report: one HTML file that needs no network and no script, or Markdown."""

from aftershock.results.report.markdown import markdown
from aftershock.results.report.page import write

__all__ = ["markdown", "write"]
