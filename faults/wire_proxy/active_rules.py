"""Rules of the wire proxy in force, the requests that they apply to, and the answers that requests take of scripts."""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from aftershock.faults.wire_proxy.holds import ERROR_NAMES, EVENTS_MAX, Holds
from aftershock.faults.wire_proxy.messages import RequestHead
from aftershock.faults.wire_proxy.rules import (
    ANY,
    API_NAMES,
    PROBE,
    Rule,
    RuleSubject,
    ScriptedAnswer,
    is_about,
    names,
    probe_id,
)


@dataclass
class Turn:
    """Requests that match a rule so far, of all clients or of one, and answers that they have taken of its script."""

    matched: int = 0
    taken: int = 0


class ActiveRule(NamedTuple):
    """A rule of the wire proxy in force, with the counters of its requests.

    ``turns`` are those of each client id, if the rule counts ``per_client``; else there is one, of None.
    """

    rule: Rule
    counts: Counter[str]
    turns: defaultdict[str | None, Turn]

    def applies_to_next(self, client_id: str | None) -> bool:
        """Count a matching request, and return True if the rule applies to it."""
        rule, turn = self.rule, self.turns[client_id if self.rule.per_client else None]
        self.counts["matched"] += 1
        turn.matched += 1
        if rule.answers:
            self.counts["scripts"] = len(self.turns)
            if turn.taken == len(rule.answers) or turn.matched < (rule.nth or 1):
                return False
        elif rule.nth is not None:
            return turn.matched == rule.nth
        return not rule.chances or rule.chances[(turn.matched - 1) % len(rule.chances)] == "1"

    def next_answer(self, client_id: str | None) -> tuple[int, ScriptedAnswer | None]:
        """Return the answer to a request of a client, with its number in the script, 0 without one or behind its end.

        Raises no error for a rule that does not answer: its answer is None.
        """
        turn = self.turns[client_id if self.rule.per_client else None]
        if not self.rule.answers:
            return 0, self.rule.plain_answer
        if turn.taken == len(self.rule.answers):
            return 0, None
        turn.taken += 1
        self.counts["finished"] += turn.taken == len(self.rule.answers)
        return turn.taken, self.rule.answers[turn.taken - 1]


class Hit(NamedTuple):
    """A rule that applies to a request; ``is_probe`` is True if the request is a probe sent by the harness.

    Of a rule that answers, ``answer`` is the answer to this request, and ``number`` its place in the rule's script. If
    only the response tells what the request is about, the answer is taken then (``is_open``).
    """

    active: ActiveRule
    is_probe: bool
    answer: ScriptedAnswer | None = None
    number: int = 0
    is_open: bool = False

    @property
    def rule(self) -> Rule:
        return self.active.rule

    @property
    def counts(self) -> Counter[str]:
        return self.active.counts

    @property
    def subject(self) -> RuleSubject:
        """Topic and partition whose items in the response are changed; in a probe's response, all items are changed."""
        return ANY if self.is_probe else self.rule.subject

    def count_request(self) -> None:
        self.counts["probed" if self.is_probe else "hit"] += 1


class ActiveRules:
    """Rules of the wire proxy in force, in the order in which they were added."""

    def __init__(self) -> None:
        self._rules: dict[str, ActiveRule] = {}
        self.holds = Holds()
        """Requests that rules hold, on all connections."""
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)

    def add(self, rule: Rule) -> None:
        """Put a rule in force; raise ValueError if another rule has its name."""
        if rule.name in self._rules:
            raise ValueError(f"a rule {rule.name!r} is already in force; remove it first, or use another name")
        counts = Counter(matched=0, hit=0, untouched=0, probed=0)
        if rule.do == "hold_request":
            counts["exposed"] = 0
        if rule.answers:
            counts.update(scripts=0, finished=0)
        self._rules[rule.name] = ActiveRule(rule, counts, defaultdict(Turn))

    def remove(self, name: str) -> Rule | None:
        """Remove a rule and return it; None if no rule has this name."""
        active = self._rules.pop(name, None)
        return active.rule if active else None

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        """Return the counters of each rule in force, by the rule's name."""
        return {name: dict(active.counts) for name, active in self._rules.items()}

    def record(self, hit: Hit, head: RequestHead, broker: int) -> None:
        """Count a request that a rule has changed or answered; an answer of a script is an event, too."""
        hit.count_request()
        if hit.number and hit.answer:
            who = {"fault": hit.rule.name, "worker": head.client_id, "node_id": broker}
            what = {"api": API_NAMES.get(head.key), "number": hit.number, "answer": hit.answer.as_text(ERROR_NAMES)}
            self._events.append({"event": "scripted_answer", "at_ns": time.monotonic_ns(), **who, **what})

    def take_events(self) -> list[dict[str, Any]]:
        """Return the events of held requests and scripted answers since the last call."""
        events = [*self.holds.take(), *self._events]
        self._events.clear()
        return events

    def about_bootstrap(self, rack: str, broker: int) -> ActiveRule | None:
        """Count a connection to a bootstrap address, and return the rule about it."""
        for active in self._rules.values():
            rule = active.rule
            if rule.do == "lose_bootstrap" and broker in rule.brokers and rule.rack in (None, rack):
                active.counts.update(matched=1, hit=1)
                return active
        return None

    def candidates(self, head: RequestHead) -> tuple[ActiveRule, ...]:
        """Return the rules that may apply to a request, judged by the request's header."""
        if not self._rules:
            return ()
        client_id = head.client_id
        is_probe = client_id is not None and client_id.startswith(PROBE)
        return tuple(
            active
            for name, active in self._rules.items()
            if (active.rule.keys is None or head.key in active.rule.keys)
            and (client_id == probe_id(name) if is_probe else active.rule.names(client_id))
        )

    def hits(self, candidates: Iterable[ActiveRule], head: RequestHead, request: Any) -> tuple[Hit, ...]:
        """Return the rules that apply to a request, and count the request in the counters of the candidate rules.

        ``request`` is the request's body, None if no rule needs the body, or if the body can't be decoded.
        """
        hits = []
        for active in candidates:
            rule, counts = active.rule, active.counts
            if head.client_id == probe_id(rule.name):
                answer = next((answer for answer in rule.answers if not answer.is_plain), rule.plain_answer)
                hits.append(Hit(active, is_probe=True, answer=answer))
            elif request is None and (rule.topic is not None or rule.do == "hold_request"):
                counts["untouched"] += 1
            elif rule.do == "hold_request" and not self.holds.may_hold(rule, request):
                continue
            elif request is None or is_about(request, rule.subject):
                if not active.applies_to_next(head.client_id):
                    continue
                if rule.answers and request is not None and not names(request, rule.subject):
                    hits.append(Hit(active, is_probe=False, is_open=True))  # an incremental fetch
                else:
                    number, answer = active.next_answer(head.client_id)
                    hits.append(Hit(active, is_probe=False, answer=answer, number=number))
        return tuple(hits)
