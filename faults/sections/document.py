"""YAML plan file as plain data with the line and column of every value; problems and their positions.

Parsing of plans is safe for files from untrusted sources, because the loader refuses tags, aliases of anchors and
repeated keys, and limits the size and the depth of a file. The loader does not convert dates, which stay text.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from io import StringIO
from pathlib import Path
from typing import Any, Protocol

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, StringMark, YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, ScalarEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from aftershock.errors import PlanError

BYTES_MAX = 64 * 1024
DEPTH_MAX = 24
TEXT_MAX = 4_000  # characters of one key or value
ENTRIES_MAX = 1_000  # of one list or mapping
INTEGER_MAX = 2**63 - 1
Location = tuple[str | int, ...]
_CORE = "tag:yaml.org,2002:"
_PYTHON_NAMES = {"for": "for_", "from": "from_"}


class Document:
    """Data of one YAML document, and the line and column of each value."""

    def __init__(
        self, name: str, text: str, data: dict[str, Any], values: dict[Location, str], keys: dict[Location, str]
    ) -> None:
        self.name = name
        self.text = text
        self.data = data
        self._values = values
        self._keys = keys

    def position(self, loc: Location) -> str:
        """Return ``plan.yaml:14:7`` for the value at ``loc``, or for its nearest existing parent."""
        prefixes = (loc[:length] for length in range(len(loc), -1, -1))
        return next(self._values[prefix] for prefix in prefixes if prefix in self._values)

    def key_position(self, loc: Location) -> str:
        """Return ``plan.yaml:14:7`` for the key at ``loc`` rather than for its value."""
        return self._keys.get(loc) or self.position(loc)

    def relocate(self, loc: Location, position: str) -> None:
        """Set a new position for a value that the command line replaced, and forget the positions inside the value."""
        for inner in [inner for inner in (*self._values, *self._keys) if inner[: len(loc)] == loc]:
            self._values.pop(inner, None)
            self._keys.pop(inner, None)
        self._values[loc] = position


def load(source: Path | str, name: str | None = None) -> Document:
    """Read a YAML file (Path) or text (str); ``name`` stands for the file in error messages.

    Raises PlanError if the file can't be read or if its YAML is invalid.
    """
    name = name or (source.name if isinstance(source, Path) else "plan.yaml")
    text = source if isinstance(source, str) else ""
    if isinstance(source, Path):
        try:
            with source.open("rb") as file:
                text = file.read(BYTES_MAX + 1).decode()
        except OSError as error:
            raise PlanError([f"{name}: the plan can't be read ({error.strerror}); check the path {source}"]) from error
        except UnicodeDecodeError as error:
            raise PlanError([f"{name}: the plan is not UTF-8 text; save it as UTF-8"]) from error
    if len(text) > BYTES_MAX:
        raise PlanError([f"{name}: the plan exceeds the limit of {BYTES_MAX // 1024} KiB; shorten the plan"])
    try:
        # Aliases and deep nesting are refused at the first event that shows them, before any value is built.
        depth = 0
        for event in YAML(typ="safe", pure=True).parse(text):
            where = f"{name}:{event.start_mark.line + 1}:{event.start_mark.column + 1}"
            if isinstance(event, AliasEvent):
                sentence = f"aliases (`*{event.anchor}`) are not allowed in a plan; write the value out"
                raise PlanError([f"{where}: {sentence}"])
            if isinstance(event, ScalarEvent) and len(event.value) > TEXT_MAX:
                raise PlanError([f"{where}: the text exceeds the limit of {TEXT_MAX} characters; shorten the text"])
            depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
            if depth > DEPTH_MAX:
                raise PlanError([f"{where}: the plan is nested more than {DEPTH_MAX} levels deep; flatten the plan"])
        root = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark: StringMark | None = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else f"{name}:1:1"
        cause = _one_line(error.problem or error.context)
        raise PlanError([f"{where}: the plan is not valid YAML ({cause}); correct it here or just before"]) from error
    except (YAMLError, ValueError) as error:
        raise PlanError([f"{name}:1:1: the plan is not valid YAML ({_one_line(error)}); correct the file"]) from error
    if not isinstance(root, MappingNode):
        where = _position(name, root) if root is not None else f"{name}:1:1"
        raise PlanError([f"{where}: a plan is a mapping of keys to values; start it with `name: ...`"])
    reader = _NodeReader(name)
    data = reader.read(root, ())
    if reader.problems:
        raise PlanError(reader.problems)
    return Document(name, text, data, reader.values, reader.keys)


def dump_yaml(data: Mapping[str, Any]) -> str:
    """Return plain data as YAML text that ``load`` reads back.

    Keys of mappings keep their order (the order of racks determines the numbers of brokers).
    """
    text = StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 1000  # each fault stays on one line, however long
    yaml.dump(data, text)
    return text.getvalue()


class _NodeReader:
    """Converter of a YAML node graph to plain data, which collects a problem for each invalid key, tag or number."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: dict[Location, str] = {}
        self.keys: dict[Location, str] = {}
        self.problems: list[str] = []

    def read(self, node: Node, loc: Location) -> Any:
        self.values[loc] = _position(self.name, node)
        if not isinstance(node, ScalarNode) and len(node.value) > ENTRIES_MAX:
            what = f"has {len(node.value)} entries, more than the limit of {ENTRIES_MAX}; remove some"
            self.problems.append(f"{self.values[loc]}: `{loc[-1] if loc else 'the plan'}` {what}")
            return None
        if isinstance(node, MappingNode):
            if node.tag != _CORE + "map":
                self._refuse_tag(node)
            data: dict[str, Any] = {}
            for key_node, value in node.value:
                where = _position(self.name, key_node)
                key = str(key_node.value)
                if not isinstance(key_node, ScalarNode):
                    problem = f"{where}: a key must be a single word; quote the key if it contains special characters"
                    self.problems.append(problem)
                elif key in data:
                    first = self.keys[*loc, key]
                    self.problems.append(f"{where}: the key `{key}` is repeated (first at {first}); remove either")
                else:
                    self.keys[*loc, key] = where
                    data[key] = self.read(value, (*loc, key))
            return data
        if isinstance(node, SequenceNode):
            if node.tag != _CORE + "seq":
                self._refuse_tag(node)
            return [self.read(item, (*loc, index)) for index, item in enumerate(node.value)]
        return self._scalar(node)  # compose() produces no other type of node

    def _refuse_tag(self, node: Node) -> None:
        tag = _shorten(str(node.tag).removeprefix(_CORE))
        where = _position(self.name, node)
        self.problems.append(f"{where}: the YAML tag `{tag}` is not allowed in a plan; remove the tag")

    def _scalar(self, node: Node) -> str | float | bool | None:
        text = str(node.value)
        tag = str(node.tag).removeprefix(_CORE)
        try:
            match tag:
                case "str" | "timestamp" | "merge":
                    return text
                case "null":
                    return None
                case "bool":
                    return text.lower() == "true"
                case "int":
                    is_prefixed = text.lstrip("+-").lower().startswith(("0x", "0o", "0b"))
                    number = int(text.replace("_", ""), 0 if is_prefixed else 10)
                    if abs(number) > INTEGER_MAX:
                        where = _position(self.name, node)
                        self.problems.append(f"{where}: `{_shorten(text)}` is too large; give at most {INTEGER_MAX}")
                        return None
                    return number
                case "float":
                    return float(text.replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))
        except ValueError:
            where = _position(self.name, node)
            self.problems.append(f"{where}: `{_shorten(text)}` can't be read as a number; quote or correct it")
            return None
        self._refuse_tag(node)
        return None


def _position(name: str, node: Node) -> str:
    return f"{name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def _shorten(text: str) -> str:
    return text if len(text) < 60 else text[:57] + "..."  # noqa: PLR2004 -- fits a line


def _one_line(value: object) -> str:
    return " ".join(str(value).split())[:200]


@dataclass(frozen=True)
class Problem:
    """Defect of a plan and its remedy; ``on_key`` is True if the key at ``loc`` is wrong, not its value."""

    loc: Location
    sentence: str
    on_key: bool = False


def prefix_problems(problems: Iterable[Problem], loc: Location) -> Iterator[Problem]:
    """Prefix the locations of problems with ``loc``, the location of the plan's part that has the problems."""
    return (replace(problem, loc=(*loc, *problem.loc)) for problem in problems)


class SourceMap(Protocol):
    """Positions of the parts of a plan in a YAML document or Python object, for error messages."""

    def position(self, loc: Location) -> str:
        """Return the position of the value at a location, a path of keys and list indices."""

    def key_position(self, loc: Location) -> str:
        """Return the position of the key, not of its value, at a location."""


class PythonSourceMap:
    """Positions, such as ``plan.faults[2].topic``, in a plan built in Python."""

    def position(self, loc: Location) -> str:
        steps = (f"[{step}]" if isinstance(step, int) else f".{_PYTHON_NAMES.get(step, step)}" for step in loc)
        return "plan" + "".join(steps)

    key_position = position


def format_problems(problems: Iterable[Problem], source_map: SourceMap) -> list[str]:
    """Return a message with position and sentence for each problem, in the order of the document, each problem once."""

    def line_and_column(located: tuple[str, str]) -> tuple[int, int]:
        parts = located[0].rsplit(":", 2)
        is_file = len(parts) == 3 and parts[1].isdecimal() and parts[2].isdecimal()  # noqa: PLR2004 -- file:line:column
        return (int(parts[1]), int(parts[2])) if is_file else (0, 0)

    located = [
        (source_map.key_position(problem.loc) if problem.on_key else source_map.position(problem.loc), problem.sentence)
        for problem in problems
    ]
    return [f"{where}: {sentence}" for where, sentence in sorted(dict.fromkeys(located), key=line_and_column)]


def did_you_mean(word: object, names: Iterable[str], *, listed: bool = True) -> str:
    """Return ``did you mean `orders`?`` for a misspelt name, or else, if ``listed``, the valid names."""
    names = sorted(names)
    close = get_close_matches(str(word), names, n=1)
    if close:
        return f"did you mean `{close[0]}`?"
    if not listed:
        return "correct or remove it"
    return f"known here: {', '.join(names)}" if names else "there are none"
