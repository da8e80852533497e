"""Arms against arms, runs against runs, tonight against the nights before. Begin with ``comparison.py``."""
