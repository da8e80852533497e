"""Clusters that we did not launch: reached, checked, and touched only where the plan's ``attach`` says so."""
