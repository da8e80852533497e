"""A YAML file as plain data, with the line and column of everything in it; safe to open for a stranger's file.

Rules: nothing is constructed but dict, list, str, int, float, bool and None (the node graph is read, no constructor
runs); tags, anchors' aliases and repeated keys are refused with their position, so neither code nor an alias bomb
gets in; size and depth are bounded. Dates stay text.

One thing wrong with a plan, and where things stand in a plan.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from io import StringIO
from pathlib import Path
from typing import Any, Protocol

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, StringMark, YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from aftershock.errors import PlanError

BYTES_MAX = 64 * 1024
DEPTH_MAX = 24
_WIDTH = 1000  # a line for each fault, however long
Loc = tuple[str | int, ...]
_CORE = "tag:yaml.org,2002:"
_TEXT_TAGS = frozenset(_CORE + tag for tag in ("str", "timestamp", "merge"))


class Document:
    """The data of one YAML document and where each part of it stands."""

    def __init__(
        self, name: str, text: str, data: dict[str, Any], values: dict[Loc, str], keys: dict[Loc, str]
    ) -> None:
        self.name = name
        self.text = text
        self.data = data
        self._values = values
        self._keys = keys

    def position(self, loc: Loc) -> str:
        """``plan.yaml:14:7`` of the value at ``loc``; of its nearest parent where there is no such value."""
        return self._nearest(self._values, loc)

    def key_position(self, loc: Loc) -> str:
        """The same for the key rather than the value behind it."""
        return self._keys.get(loc) or self.position(loc)

    def moved(self, loc: Loc, where: str) -> None:
        """The value at ``loc`` now comes from somewhere else (the command line, say)."""
        inside = [place for place in (*self._values, *self._keys) if place[: len(loc)] == loc]
        for place in inside:
            self._values.pop(place, None)
            self._keys.pop(place, None)
        self._values[loc] = where

    def _nearest(self, places: dict[Loc, str], loc: Loc) -> str:
        return next(places[loc[:n]] for n in range(len(loc), -1, -1) if loc[:n] in places)


def load(source: Path | str, name: str | None = None) -> Document:
    """Read a file (Path) or a text (str). ``name`` is how messages call it.

    Raises PlanError with a position for bad syntax, and with a sentence for a file that can't be read.
    """
    name = name or (source.name if isinstance(source, Path) else "plan.yaml")
    text = _text(source, name)
    try:
        _refuse_bombs(text, name)
        root = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        raise _syntax(name, error) from error
    except (YAMLError, ValueError) as error:
        raise PlanError([f"{name}:1:1: this is not YAML ({_one_line(error)}); mend the file"]) from error
    if not isinstance(root, MappingNode):
        where = _at(name, root) if root is not None else f"{name}:1:1"
        raise PlanError([f"{where}: a plan is a mapping of keys to values; start it with `name: ...`"])
    return _Reader(name).document(root, text)


def dump(data: Mapping[str, Any]) -> str:
    """Plain data as YAML text that ``load`` reads back; keys in the order they have (that of racks numbers brokers)."""
    text = StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = _WIDTH
    yaml.dump(data, text)
    return text.getvalue()


class _Reader:
    """Walks the node graph once, collecting every problem of form."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: dict[Loc, str] = {}
        self.keys: dict[Loc, str] = {}
        self.problems: list[str] = []

    def document(self, root: MappingNode, text: str) -> Document:
        data = self.read(root, ())
        if self.problems:
            raise PlanError(self.problems)
        return Document(self.name, text, data, self.values, self.keys)

    def read(self, node: Node, loc: Loc) -> Any:
        self.values[loc] = _at(self.name, node)
        if isinstance(node, MappingNode):
            self._expect(node, "map")
            return {key: self.read(value, (*loc, key)) for key, value in self._entries(node, loc)}
        if isinstance(node, SequenceNode):
            self._expect(node, "seq")
            return [self.read(item, (*loc, index)) for index, item in enumerate(node.value)]
        return self._scalar(node)  # compose() gives no other sort of node

    def _entries(self, node: MappingNode, loc: Loc) -> Iterator[tuple[str, Node]]:
        seen: dict[str, str] = {}
        for key_node, value in node.value:
            where = _at(self.name, key_node)
            if not isinstance(key_node, ScalarNode):
                self.problems.append(f"{where}: a key must be a single word; quote it if it holds signs")
                continue
            key = str(key_node.value)
            if key in seen:
                self.problems.append(f"{where}: the key `{key}` is here twice (first at {seen[key]}); keep one")
                continue
            seen[key] = where
            self.keys[*loc, key] = where
            yield key, value

    def _expect(self, node: Node, tag: str) -> None:
        if node.tag != _CORE + tag:
            self.problems.append(
                f"{_at(self.name, node)}: the tag `{_shown(str(node.tag))}` is not allowed; take it away"
            )

    def _scalar(self, node: Node) -> str | float | bool | None:
        text = str(node.value)
        if node.tag in _TEXT_TAGS:
            return text
        try:
            return _plain(str(node.tag).removeprefix(_CORE), text)
        except KeyError:
            self.problems.append(
                f"{_at(self.name, node)}: the tag `{_shown(str(node.tag))}` is not allowed; take it away"
            )
        except ValueError:
            self.problems.append(
                f"{_at(self.name, node)}: `{_shown(text)}` can't be read as a number; quote it or mend it"
            )
        return None


def _plain(tag: str, text: str) -> float | bool | None:
    """Raises KeyError for a tag of no plain type, ValueError for text that isn't of that type."""
    if tag == "null":
        return None
    if tag == "bool":
        return text.lower() == "true"
    if tag == "int":
        return int(text.replace("_", ""), 0 if text.lstrip("+-").lower().startswith(("0x", "0o", "0b")) else 10)
    if tag == "float":
        return float(text.replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))
    raise KeyError(tag)


def _text(source: Path | str, name: str) -> str:
    if isinstance(source, str):
        text = source
    else:
        try:
            with source.open("rb") as file:
                text = file.read(BYTES_MAX + 1).decode()
        except OSError as error:
            raise PlanError([f"{name}: the plan can't be read ({error.strerror}); check the path {source}"]) from error
        except UnicodeDecodeError as error:
            raise PlanError([f"{name}: the plan is not UTF-8 text; save it as UTF-8"]) from error
    if len(text) > BYTES_MAX:
        raise PlanError([f"{name}: the plan is larger than {BYTES_MAX // 1024} KiB; no plan needs that"])
    return text


def _refuse_bombs(text: str, name: str) -> None:
    """Refuse aliases and deep nesting at the first event that shows them, before anything is built from the text."""
    depth = 0
    for event in YAML(typ="safe", pure=True).parse(text):
        where = f"{name}:{event.start_mark.line + 1}:{event.start_mark.column + 1}"
        if isinstance(event, AliasEvent):
            raise PlanError([f"{where}: aliases (`*{event.anchor}`) are not allowed in a plan; write the value out"])
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > DEPTH_MAX:
            raise PlanError([f"{where}: nested too deeply ({DEPTH_MAX} levels are allowed); no plan needs that"])


def _syntax(name: str, error: MarkedYAMLError) -> PlanError:
    mark: StringMark | None = error.problem_mark or error.context_mark
    where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else f"{name}:1:1"
    return PlanError(
        [f"{where}: this is not YAML ({_one_line(error.problem or error.context)}); mend it here or just before"]
    )


def _at(name: str, node: Node) -> str:
    return f"{name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def _shown(text: str) -> str:
    return text.removeprefix(_CORE) if len(text) < 60 else text[:57] + "..."  # noqa: PLR2004 -- what fits a line


def _one_line(what: object) -> str:
    return " ".join(str(what).split())[:200]


Location = tuple[str | int, ...]
_RESERVED = {"for": "for_", "from": "from_"}


@dataclass(frozen=True)
class Problem:
    """``sentence`` says what is wrong and what to do; ``on_key``: the key at ``loc`` is meant, not its value."""

    loc: Location
    sentence: str
    on_key: bool = False


def within(problems: Iterable[Problem], loc: Location) -> Iterator[Problem]:
    """Problems of a part, placed in the whole."""
    return (replace(problem, loc=(*loc, *problem.loc)) for problem in problems)


class Places(Protocol):
    """Says where a part of a plan stands: a YAML document does, and so does a plan built in Python."""

    def position(self, loc: Location) -> str:
        """Where the value at ``loc`` stands."""

    def key_position(self, loc: Location) -> str:
        """Where its key stands."""


class PythonPlaces:
    """A plan built in Python: ``plan.faults[2].topic``."""

    def position(self, loc: Location) -> str:
        """The expression that leads to the value."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{_RESERVED.get(step, step)}" for step in loc)
        return "plan" + "".join(steps)

    key_position = position


def worded(problems: Iterable[Problem], places: Places) -> list[str]:
    """``file:line:column: sentence`` each, in the order of the document, repeats left out."""
    placed = [
        (places.key_position(problem.loc) if problem.on_key else places.position(problem.loc), problem.sentence)
        for problem in problems
    ]
    return [f"{where}: {sentence}" for where, sentence in sorted(dict.fromkeys(placed), key=lambda it: _order(it[0]))]


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """``did you mean `orders`?``, else what is known: ``known here: a, b``."""
    known = sorted(known)
    close = get_close_matches(str(word), known, n=1)
    if close:
        return f"did you mean `{close[0]}`?"
    return f"known here: {', '.join(known)}" if known else "there are none"


def _order(where: str) -> tuple[int, int]:
    parts = where.rsplit(":", 2)
    is_file = len(parts) == 3 and parts[1].isdecimal() and parts[2].isdecimal()  # noqa: PLR2004 -- file, line, column
    return (int(parts[1]), int(parts[2])) if is_file else (0, 0)
