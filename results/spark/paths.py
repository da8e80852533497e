"""Names of files as Hadoop takes them: its paths are patterns, and are not percent-encoded."""

import re

_PATTERN = re.compile(r"[\\{}\[\]*?]")


def literal(path: str) -> str:
    """``path``, so that no letter of it is taken for a pattern."""
    return _PATTERN.sub(r"\\\g<0>", path)
