"""The rules in force, which requests they meet, and how often they did.

=============  ============================================================================
counter        counts requests
=============  ============================================================================
``matched``    that a rule is about: by API, client, topic and partition
``hit``        of these, those that were done what the rule says
``untouched``  of these, those that should have been, and could not: their bytes are strange
``probed``     under the rule's probe id, that were done what the rule says
=============  ============================================================================
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from aftershock.faults.wire_proxy.heads import Head
from aftershock.faults.wire_proxy.naming import ANY, Named, about
from aftershock.faults.wire_proxy.rule import PROBE, Rule, probe_id

COUNTERS = ("matched", "hit", "untouched", "probed")


class Live:
    """One rule in force."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
        self.named = Named(rule.topic, rule.topic_id, rule.partition)
        self._key = rule.key
        self._probe_id = probe_id(rule.name)

    def may_meet(self, head: Head) -> bool:
        """As far as the head of a request tells."""
        if self._key is not None and head.key != self._key:
            return False
        if head.client_id is not None and head.client_id.startswith(PROBE):
            return head.client_id == self._probe_id
        return self.rule.names(head.client_id)

    def is_probe(self, head: Head) -> bool:
        """Whether somebody asks only to see the rule at work."""
        return head.client_id == self._probe_id

    def chooses(self) -> bool:
        """Whether the request that was just counted as ``matched`` is one of those to be hit."""
        number, chances = self.counts["matched"], self.rule.chances
        if self.rule.nth is not None:
            return number == self.rule.nth
        return not chances or chances[(number - 1) % len(chances)] == "1"


class Hit(NamedTuple):
    """A rule that a request has met and that has chosen it."""

    live: Live
    is_probe: bool

    @property
    def rule(self) -> Rule:
        """The rule."""
        return self.live.rule

    @property
    def named(self) -> Named:
        """What it is about in the answer; a probe names what nobody has, and is met all the same."""
        return ANY if self.is_probe else self.live.named

    def done(self) -> None:
        """Count it as done."""
        self.live.counts["probed" if self.is_probe else "hit"] += 1

    def untouched(self) -> None:
        """Count it as one that could not be done."""
        self.live.counts["untouched"] += 1


class Book:
    """The rules in force, in the order in which they came."""

    def __init__(self) -> None:
        self._live: dict[str, Live] = {}

    def add(self, rule: Rule) -> None:
        """Put a rule in force. ValueError if there is one of that name."""
        if rule.name in self._live:
            raise ValueError(f"there is a rule {rule.name!r} already")
        self._live[rule.name] = Live(rule)

    def remove(self, name: str) -> Rule | None:
        """Take a rule away; None if there is none of that name."""
        live = self._live.pop(name, None)
        return live.rule if live else None

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        """What each rule has counted, by its name."""
        return {name: dict(live.counts) for name, live in self._live.items()}

    def candidates(self, head: Head) -> tuple[Live, ...]:
        """The rules that may meet a request, as far as its head tells."""
        if not self._live:
            return ()
        return tuple(live for live in self._live.values() if live.may_meet(head))

    def hits(self, candidates: Sequence[Live], head: Head, request: Any) -> tuple[Hit, ...]:
        """Count the request, and give the rules that have chosen it.

        ``request``: its body; None where no rule needs it, or it can't be read.
        """
        found = []
        for live in candidates:
            if live.is_probe(head):
                found.append(Hit(live, is_probe=True))
            elif live.named.topic is not None and request is None:
                live.counts["untouched"] += 1
            elif request is None or about(request, live.named):
                live.counts["matched"] += 1
                if live.chooses():
                    found.append(Hit(live, is_probe=False))
        return tuple(found)
