"""The report: one HTML file that needs no network and no script."""

from aftershock.results.report.page import write

__all__ = ["write"]
