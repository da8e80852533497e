"""Clusters kept for ad-hoc work, and faults injected into them by hand."""
