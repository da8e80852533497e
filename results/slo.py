"""The SLO grammar: one line of text to one value. Pure; imports nothing of ours.

::

    produce.latency p95 < 250ms [in WINDOW] [for ARM]     also of consume, commit; .service; pNN(.N) or max
    produce.success >= 99.9%    [in WINDOW] [for ARM]     also of commit
    produce.gap < 6s            [in WINDOW] [for ARM]     also of consume, commit: longest time without a success
    recovery < 5s after FAULT   [for ARM]
    lost == 0                   [for ARM]                 also duplicate, phantom, order
    p95(ARM) <= 0.7 * p95(ARM) of produce.latency [in WINDOW]

    WINDOW   warmup | steady | fault | recovery | fault/<id>;  none means everything after warm-up

Rules: spaces are free, a time or a share needs its unit, a word that is almost right is named in the error.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from fractions import Fraction
from typing import Literal, NoReturn, TypeAlias, cast

Op: TypeAlias = Literal["<", "<=", ">", ">=", "=="]
Side: TypeAlias = Literal["produce", "consume", "commit"]

LATENCIES = ("produce.latency", "produce.service", "consume.latency", "commit.latency", "commit.service")
SUCCESSES = ("produce.success", "commit.success")
GAPS = ("produce.gap", "consume.gap", "commit.gap")
COUNTS = ("lost", "duplicate", "phantom", "order")
WINDOWS = ("warmup", "steady", "fault", "recovery")
UNITS_US = {"us": 1, "ms": 1_000, "s": 1_000_000}

_TOKEN = re.compile(
    r"\s*(?:(?P<token><=|>=|==|[<>()*]|\d+(?:\.\d+)?\s+(?:us|ms|s|%)(?![\w.-])|[A-Za-z0-9_./%-]+)|(?P<bad>\S))"
)
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)(.*)", re.DOTALL)
_QUANTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?)")


class SloSyntaxError(ValueError):
    """The text is not an SLO. ``column`` (from 1) is where in the text it stopped making sense."""

    def __init__(self, message: str, column: int) -> None:
        super().__init__(message)
        self.column = column


@dataclass(frozen=True)
class _Stated:
    """What every SLO has: its text as written, its window (None: all after warm-up), its arms (empty: every arm)."""

    text: str
    window: str | None
    arms: tuple[str, ...]

    @property
    def fault(self) -> str | None:
        """The id of the one fault this SLO names, if it names one."""
        return self.window.removeprefix("fault/") if self.window and self.window.startswith("fault/") else None

    @property
    def side(self) -> Side | None:
        """Which rows it reads; None for counts, which read both and the log."""
        return "produce"

    def needs(self) -> int:
        """The fewest records that can decide it, per arm; with fewer the check is INCONCLUSIVE."""
        return 1

    def _in_window(self) -> str:
        return f"-{self.window}" if self.window else ""


def _quantile_needs(q: float | None) -> int:
    """Ten records beyond the quantile (design 5.4: n >= 10/(1-q)); one for ``max``."""
    return 1 if q is None else math.ceil(10 / (1 - Fraction(repr(q))))


def quantile_name(q: float | None) -> str:
    """``p95``, ``p99.9``, or ``max`` for None."""
    return "max" if q is None else f"p{(Decimal(repr(q)) * 100).normalize():f}"


@dataclass(frozen=True)
class _OfMetric(_Stated):
    metric: str

    @property
    def side(self) -> Side:
        """Which rows the metric is measured on."""
        return cast("Side", self.metric.split(".")[0])


@dataclass(frozen=True)
class Quantile(_OfMetric):
    """``produce.latency p95 < 250ms``: nearest-rank quantile ``q`` in (0, 1), None for max, against microseconds."""

    q: float | None
    op: Op
    threshold_us: int

    def needs(self) -> int:
        """Ten records beyond the quantile: n >= 10/(1-q); one for max."""
        return _quantile_needs(self.q)

    def check_id(self) -> str:
        """``slo/produce.latency-p95-fault``; the arm is in the check's subject."""
        return f"slo/{self.metric}-{quantile_name(self.q)}{self._in_window()}"


@dataclass(frozen=True)
class Success(_OfMetric):
    """``produce.success >= 99.9%``: ``fraction`` in (0, 1] of the records that must be acknowledged."""

    op: Op
    fraction: float

    def needs(self) -> int:
        """1/(1-fraction): with fewer records one failure could not be told from too many; one for 100 %."""
        missing = 1 - Fraction(repr(self.fraction))
        return math.ceil(1 / missing) if missing else 1

    def check_id(self) -> str:
        """``slo/produce.success-fault``."""
        return f"slo/{self.metric}{self._in_window()}"


@dataclass(frozen=True)
class Gap(_OfMetric):
    """``produce.gap < 6s``: the longest time without a successful completion."""

    op: Op
    threshold_us: int

    def check_id(self) -> str:
        """``slo/produce.gap-fault``."""
        return f"slo/{self.metric}{self._in_window()}"


@dataclass(frozen=True)
class Recovery(_Stated):
    """``recovery < 5s after kill-1``: from inject to the first 2 s in which all succeed and p95 <= 2 x steady."""

    op: Op
    threshold_us: int
    after: str

    @property
    def fault(self) -> str:
        """The fault it counts from."""
        return self.after

    def needs(self) -> int:
        """200 records in ``steady``: its p95 is the yardstick, and a p95 needs 10/(1-0.95)."""
        return _quantile_needs(0.95)

    def check_id(self) -> str:
        """``slo/recovery-kill-1``."""
        return f"slo/recovery-{self.after}"


@dataclass(frozen=True)
class Count(_Stated):
    """``lost == 0``: how many records broke an integrity rule, whatever the configuration permits."""

    rule: str
    op: Op
    limit: int

    @property
    def side(self) -> None:
        """Both sides, and the log."""

    def check_id(self) -> str:
        """``slo/lost``."""
        return f"slo/{self.rule}"


@dataclass(frozen=True)
class Compare(_OfMetric):
    """``p95(a) <= 0.7 * p95(b) of produce.latency``: ``arms`` is (a, b)."""

    q: float | None
    op: Op
    factor: float

    def needs(self) -> int:
        """Ten records beyond the quantile, in each of the two arms."""
        return _quantile_needs(self.q)

    def check_id(self) -> str:
        """``compare/produce.latency-p95-a-b-fault``."""
        return f"compare/{self.metric}-{quantile_name(self.q)}-{self.arms[0]}-{self.arms[1]}{self._in_window()}"


Slo: TypeAlias = Quantile | Success | Gap | Recovery | Count | Compare


def parse(text: str) -> Slo:
    """The SLO that ``text`` states. Raises SloSyntaxError, which says what is wrong and at which column."""
    reader = _Reader(text)
    slo = _statement(reader)
    reader.end()
    return slo


class _Reader:
    """The tokens of one text, each with its column, taken one at a time."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens = self._split(text)
        self._next = 0

    @staticmethod
    def _split(text: str) -> list[tuple[str, int]]:
        found = list(_TOKEN.finditer(text))
        bad = next((token for token in found if token["bad"]), None)
        if bad:
            raise SloSyntaxError(f"unexpected {bad['bad']!r} in an SLO; take it out", bad.start("bad") + 1)
        return [("".join(token["token"].split()), token.start("token") + 1) for token in found]

    @property
    def column(self) -> int:
        return self._tokens[self._next][1] if self._next < len(self._tokens) else len(self.text.rstrip()) + 1

    def peek(self) -> str:
        """The next token, or an empty string at the end."""
        return self._tokens[self._next][0] if self._next < len(self._tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self._next += 1
        return token

    def fail(self, message: str) -> NoReturn:
        raise SloSyntaxError(message, self.column)

    def one_of(self, words: Sequence[str], what: str) -> str:
        """The next token, which must be one of ``words``; the error names the nearest."""
        if self.peek() not in words:
            near = get_close_matches(self.peek(), words, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]!r}?" if near else f"write {' or '.join(words)}"
            self.fail(f"{what} expected, {_seen(self.peek())}; {hint}")
        return self.take()

    def accept(self, word: str) -> bool:
        accepted = self.peek() == word
        self._next += accepted
        return accepted

    def name(self, what: str) -> str:
        if not _NAME.fullmatch(self.peek()):
            self.fail(f"the name of {what} expected, {_seen(self.peek())}")
        return self.take()

    def end(self) -> None:
        if self.peek():
            self.fail(f"unexpected {self.peek()!r} after the end of the SLO; 'in WINDOW' comes before 'for ARM'")


def _seen(token: str) -> str:
    return f"got {token!r}" if token else "but the text ends here"


def _statement(reader: _Reader) -> Slo:
    """Chooses the form by the first word."""
    first = reader.peek()
    if first == "max" or _QUANTILE.fullmatch(first):
        return _compare(reader)
    forms: dict[str, Callable[[_Reader], Slo]] = dict.fromkeys(LATENCIES, _quantile)
    forms |= dict.fromkeys(SUCCESSES, _success) | dict.fromkeys(GAPS, _gap)
    forms |= {"recovery": _recovery, **dict.fromkeys(COUNTS, _count)}
    if first not in forms:
        reader.one_of(tuple(forms), "a metric")
    return forms[first](reader)


def _quantile(reader: _Reader) -> Quantile:
    metric, q, op = reader.take(), _q(reader), _op(reader, "<", "<=")
    threshold_us = _time_us(reader)
    return Quantile(reader.text, _window(reader), _arms(reader), metric, q, op, threshold_us)


def _success(reader: _Reader) -> Success:
    metric, op, fraction = reader.take(), _op(reader, ">=", ">"), _share(reader)
    return Success(reader.text, _window(reader), _arms(reader), metric, op, fraction)


def _gap(reader: _Reader) -> Gap:
    metric, op, threshold_us = reader.take(), _op(reader, "<", "<="), _time_us(reader)
    return Gap(reader.text, _window(reader), _arms(reader), metric, op, threshold_us)


def _recovery(reader: _Reader) -> Recovery:
    reader.take()
    op, threshold_us = _op(reader, "<", "<="), _time_us(reader)
    reader.one_of(("after",), "'after FAULT'")
    after = reader.name("a fault")
    return Recovery(reader.text, None, _arms(reader), op, threshold_us, after)


def _count(reader: _Reader) -> Count:
    rule, op = reader.take(), _op(reader, "==", "<=", "<")
    if not reader.peek().isascii() or not reader.peek().isdigit():
        reader.fail(f"a whole number expected, {_seen(reader.peek())}")
    limit = int(reader.take())
    return Count(reader.text, None, _arms(reader), rule, op, limit)


def _compare(reader: _Reader) -> Compare:
    q, left = _q_of_arm(reader)
    op, factor = _op(reader, "<=", "<"), _factor(reader)
    reader.one_of(("*",), "'*'")
    column = reader.column
    other_q, right = _q_of_arm(reader)
    if other_q != q:
        raise SloSyntaxError(f"{quantile_name(q)} can't be compared with {quantile_name(other_q)}; use one", column)
    if left == right:
        raise SloSyntaxError(f"arm {left!r} is compared with itself; name two arms", column)
    reader.one_of(("of",), "'of METRIC'")
    metric = reader.one_of(LATENCIES, "a latency")
    return Compare(reader.text, _window(reader), (left, right), metric, q, op, factor)


def _q_of_arm(reader: _Reader) -> tuple[float | None, str]:
    q = _q(reader)
    reader.one_of(("(",), "'(ARM)'")
    arm = reader.name("an arm")
    reader.one_of((")",), "')'")
    return q, arm


def _q(reader: _Reader) -> float | None:
    """``p99.9`` as 0.999, ``max`` as None."""
    if reader.accept("max"):
        return None
    found = _QUANTILE.fullmatch(reader.peek())
    if not found or not Decimal(found[1]):
        reader.fail(f"a quantile like p95 or p99.9, or max, expected, {_seen(reader.peek())}")
    reader.take()
    return float(Decimal(found[1]) / 100)


def _op(reader: _Reader, *allowed: Op) -> Op:
    return cast("Op", reader.one_of(allowed, "a comparison"))


def _number(reader: _Reader, what: str) -> tuple[Decimal, str]:
    """The number that comes next and its unit; takes nothing, so that an error still points at it."""
    found = _NUMBER.fullmatch(reader.peek())
    if not found:
        reader.fail(f"{what} expected, {_seen(reader.peek())}")
    return Decimal(found[1]), found[2]


def _time_us(reader: _Reader) -> int:
    number, unit = _number(reader, "a time like 250ms or 5s")
    if unit not in UNITS_US:
        shown = f"{reader.peek()!r} has no unit" if not unit else f"unit {unit!r} is unknown"
        reader.fail(f"{shown}; write a time in us, ms or s, like 250ms")
    micros = number * UNITS_US[unit]
    if micros != int(micros) or not micros:
        reader.fail(f"a time of {reader.peek()} can't be judged; give at least 1us, in whole microseconds")
    reader.take()
    return int(micros)


def _share(reader: _Reader) -> float:
    number, unit = _number(reader, "a share like 99.9%")
    if unit != "%":
        reader.fail(f"{reader.peek()!r} is not a share; write it in percent, like 99.9%")
    if not 0 < number <= 100:  # noqa: PLR2004 - percent
        reader.fail(f"a share of {reader.peek()} can't be; give more than 0% and at most 100%")
    reader.take()
    return float(number / 100)


def _factor(reader: _Reader) -> float:
    number, unit = _number(reader, "a factor like 0.7")
    if unit or not number:
        reader.fail(f"a factor above 0 without a unit expected, got {reader.peek()!r}")
    reader.take()
    return float(number)


def _window(reader: _Reader) -> str | None:
    if not reader.accept("in"):
        return None
    if reader.peek().startswith("fault/") and _NAME.fullmatch(reader.peek().removeprefix("fault/")):
        return reader.take()
    return reader.one_of(WINDOWS, "a window (warmup, steady, fault, recovery or fault/<id>)")


def _arms(reader: _Reader) -> tuple[str, ...]:
    return (reader.name("an arm"),) if reader.accept("for") else ()
