"""Removal of secrets from text before the text is stored or shown.

Two rules apply. A secret that this process has read (``remember``) is removed wherever it occurs. In messages, logs and
command lines, text that looks like a secret is removed too, whoever wrote it: ``password=…``, ``token=…`` and the like,
and the password in a URL. A reference ``${NAME}`` is no secret and stays. Files that are read back as they are (plans,
undo commands) are only searched for known secrets.

``anonymise`` also removes host names and paths, from evidence that is published.
"""

import json
import re
from collections.abc import Sequence
from html import escape
from typing import Any
from urllib.parse import quote

MASK = "***"
_SHORTEST = 4  # a shorter value would also remove ordinary words and numbers

_known: dict[str, None] = {}

_ASSIGNMENT = re.compile(
    r"""(?ix) (?<![\w.-])
    (?P<name> [\w.-]{0,100} (?: password | passwd | passphrase | token | secret | credential | access[._-]?key )
    [\w.-]{0,100} = )
    (?! \$\{ ) (?: "[^"]*" | '[^']*' | [^\s"';&,|]+ )"""
)
_USER_INFO = re.compile(r"(?i)\b(?P<head>[a-z][a-z0-9+.-]{0,20}://[^\s/@:]{0,200}):(?!\$\{)[^\s/@]{1,500}@")
PLACE = re.compile(
    r"(?<![\w.:/-])/(?:home|root|work|tmp|var(?!/lib/kafka)|opt|mnt|srv|private|Users)/[^\s\"']*"
    r"|\b[\w-]+(?:\.[\w-]+)*\.(?:com|dev|io|net|org|cloud|internal|local)(?::\d+|/)[^\s\"']*"
)
"""Absolute paths of a machine, not of a node, and host names with a port or path, as those of image registries."""
_OPTION = "--secret="  # names an environment variable


def remember(secret: str) -> None:
    """Add a secret that this process has read, also as it is written in JSON, Python and URLs."""
    if len(secret) >= _SHORTEST:
        spellings = (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], quote(secret, safe=""), escape(secret))
        _known.update(dict.fromkeys(spellings))


def redact_known(text: str) -> str:
    """Return ``text`` without the secrets that this process has read."""
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def redact(text: str) -> str:
    """Return ``text`` without known secrets and without anything that looks like a secret."""
    text = redact_known(text)
    if "=" in text:
        text = _ASSIGNMENT.sub(
            lambda match: match[0] if match["name"].lower() == _OPTION else f"{match['name']}{MASK}", text
        )
    return _USER_INFO.sub(rf"\g<head>:{MASK}@", text) if "@" in text else text


def redact_data(data: Any) -> Any:
    """Return plain data (mappings, lists, scalars) with every text redacted; the keys of mappings stay."""
    if isinstance(data, str):
        return redact(data)
    if isinstance(data, dict):
        return {key: redact_data(value) for key, value in data.items()}
    return [redact_data(value) for value in data] if isinstance(data, list | tuple) else data


def anonymise(text: str, hosts: Sequence[str]) -> str:
    """Return ``text`` without secrets, without ``hosts``, and without paths and host names of this machine.

    A path keeps its last component. A host name without a dot is removed only before a port, because it may be a word.
    """
    text = redact(text)
    for number, host in enumerate(hosts, 1):
        ending = r"(?![\w-]|\.\w)" if "." in host or ":" in host else r"(?=:\d)"
        text = re.sub(rf"(?<![\w.-]){re.escape(host)}{ending}", f"host-{number}", text)
    return PLACE.sub(_anonymous_place, text)


def _anonymous_place(match: re.Match[str]) -> str:
    place = match[0]
    return place.rstrip("/").rsplit("/", 1)[-1] if place.startswith("/") else re.sub(r"^[\w.-]+", "host", place)
