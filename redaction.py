"""Removal of secrets from text before the text is stored or shown.

Two rules apply. A secret that this process has read (``remember``) is removed wherever it occurs. In messages, logs and
command lines, text that looks like a secret is removed too, whoever wrote it: ``password=…``, ``token=…`` and the like,
such entries of JSON and YAML, ``Bearer …``, private keys (PEM), and the password or token in a URL. A reference
``${NAME}`` is no secret and stays. Files that are read back as they are (plans, undo commands) are only searched for
known secrets.

``anonymise`` also removes host names and paths, from evidence that is published.
"""

import json
import logging
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any
from urllib.parse import quote

MASK = "***"
_SHORTEST = 4  # a shorter value would also remove ordinary words and numbers

_known: dict[str, None] = {}

_NAME = r"""[\w.-]{0,100} (?: password | passwd | pwd | passphrase | token | secret | credential
    | (?: access | api | private ) [._-]? key ) [\w.-]{0,100}"""
_QUOTED = r"""\\+"[^"]*" | "(?:[^"\\]|\\.)*" | '[^']*'"""  # the first inside another quoted text
_ASSIGNMENT = re.compile(rf"""(?ixs) (?<![\w.-]) (?P<name> {_NAME} = ) (?! \$\{{ ) (?: {_QUOTED} | [^\s"';&,|]+ )""")
# an entry of JSON or YAML begins a line, or follows a bracket or a comma; a sentence with a colon does neither
_ENTRY = re.compile(
    rf"""(?ixs) (?P<name> (?: ^ | [\n{{,] ) [^\S\n]{{0,40}} (?: -[^\S\n]{{1,9}} )?
    (?P<quote> \\*["'] )? {_NAME} (?: \\*["'] )? \s{{0,9}} : [^\S\n]{{0,9}} )
    (?! (?: \\*["'] )? \$\{{ | [\[{{] | [^\S\n] ) (?: (?P<text> {_QUOTED} ) | [^"'\s,}}]+ )"""
)
_BEARER = re.compile(r"(?i)\b(?P<kind>bearer|basic)\s{1,9}(?!\$\{)(?=[\w.~+/-]*[\d=])[\w.~+/=-]{8,}")
_PRIVATE_KEY = re.compile(
    r"-----BEGIN ([A-Z0-9 ]{0,40}PRIVATE KEY)-----.*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL
)
_USER_INFO = re.compile(
    r"(?i)\b(?:(?P<head>[a-z][a-z0-9+.-]{0,20}://[^\s/@:]{0,200}):(?!\$\{)[^\s/@]{1,500}@"
    r"|(?P<web>https?://)(?!\$\{)[^\s/@:]{8,500}@)"
)
PLACE = re.compile(
    r"(?<![\w.:/-])/(?:home|root|work|tmp|var(?!/lib/kafka)|opt|mnt|srv|private|Users)/[^\s\"']*"
    r"|(?<![\w.-])[\w-]+(?:\.[\w-]+)*\.(?:com|dev|io|net|org|cloud|internal|local)(?::\d+|/)[^\s\"']*"
)
"""Absolute paths of a machine, not of a node, and host names with a port or path, as those of image registries."""
_OPTION = "--secret="  # names an environment variable


def remember(secret: str) -> None:
    """Add a secret that this process has read, also as it is written in JSON, Python, URLs, HTML and Base64.

    A text of a JSON document may itself hold JSON, as what a client has logged, and that again: three times suffice.
    """
    if len(secret) >= _SHORTEST:
        in_json = [json.dumps(secret)[1:-1]]
        for _ in range(2):
            in_json.append(json.dumps(in_json[-1])[1:-1])
        spellings = (repr(secret)[1:-1], quote(secret, safe=""), quote(secret), escape(secret))
        _known.update(dict.fromkeys((secret, *in_json, *spellings, *_in_base64(secret.encode()))))


def _in_base64(secret: bytes) -> Iterator[str]:
    """Yield what a text with ``secret`` has in Base64 (RFC 4648, both alphabets), at each of the three offsets."""
    for before, first in ((0, 0), (1, 2), (2, 3)):
        last = (before + len(secret)) * 8 // 6
        for encode in (b64encode, urlsafe_b64encode):
            certain = encode(b"\0" * before + secret).decode()[first:last]
            if len(certain) >= 2 * _SHORTEST:
                yield certain


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
    if ":" in text:
        text = _USER_INFO.sub(
            lambda match: f"{match['head']}:{MASK}@" if match["head"] else f"{match['web']}{MASK}@", text
        )
        text = _ENTRY.sub(_masked_entry, text)
    return _PRIVATE_KEY.sub(rf"-----\g<1> {MASK}-----", _BEARER.sub(rf"\g<kind> {MASK}", text))


def _masked_entry(entry: re.Match[str]) -> str:
    """Keep the quotes of a text, and numbers and the like of JSON, so that the text can still be parsed."""
    if entry["text"]:
        escapes = len(entry["text"]) - len(entry["text"].lstrip("\\"))
        quote_mark = entry["text"][: escapes + 1]
        return f"{entry['name']}{quote_mark}{MASK}{quote_mark}"
    return entry[0] if entry["quote"] else f"{entry['name']}{MASK}"


def redact_data(data: Any) -> Any:
    """Return plain data (mappings, lists, scalars) with every text redacted; the keys of mappings stay."""
    if isinstance(data, str):
        return redact(data)
    if isinstance(data, dict):
        return {key: redact_data(value) for key, value in data.items()}
    return [redact_data(value) for value in data] if isinstance(data, list | tuple) else data


class RedactingFormatter(logging.Formatter):
    """Formatter of log lines without secrets, also in tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


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
