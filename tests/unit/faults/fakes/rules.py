"""The wire proxy in memory: rules that match a probe, and counters that grow while there is traffic."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aftershock.errors import FaultError
from aftershock.faults.targets.values import Answer
from aftershock.faults.wire_proxy.rules import API_KEYS, Rule, rule_from

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.fake_world import FakeWorld


TRIP_MS = 2.0
OFFERED = dict.fromkeys(API_KEYS, 13)
FEATURES = {"metadata.version": 29, "transaction.version": 2}


class FakeRules:
    """Fake of `faults.runtime.world.WireProxyControl`.

    Rules in ``ineffective`` are stored but do nothing. With ``unreachable`` set, no broker answers. Held requests
    arrive late, unless ``late`` is False.
    """

    def __init__(self) -> None:
        super().__init__()
        self.in_force: dict[str, Rule] = {}
        self.counted: dict[str, dict[str, int]] = {}
        self.ineffective = False
        self.late = True
        self.unreachable = False
        self.no_proxy = False

    async def add_rule(self: "FakeWorld", rule: Mapping[str, Any]) -> None:
        await self._called("add_rule", rule["name"])
        self.in_force[rule["name"]] = rule_from(rule)
        counters = ("matched", "hit", "untouched", "probed", "exposed", "scripts", "finished")
        self.counted[rule["name"]] = dict.fromkeys(counters, 0)

    async def remove_rule(self: "FakeWorld", name: str) -> None:
        await self._called("remove_rule", name)
        self.in_force.pop(name, None)

    async def rules(self: "FakeWorld") -> Mapping[str, Mapping[str, int]]:
        """Return the rules; each call counts one more request that every rule matched."""
        await self._called("rules", None)
        if self.no_proxy:
            raise FaultError("clients of this cluster pass no wire proxy")
        for name in self.in_force:
            counted = self.counted[name]
            for counter in () if self.ineffective else ("matched", "hit", *(("exposed",) * self.late)):
                counted[counter] += 1
            if answers := self.in_force[name].answers:
                counted["hit"] = min(counted["hit"], sum(not answer.is_plain for answer in answers))
                counted["scripts"], counted["finished"] = 1, int(counted["matched"] >= len(answers))
        return {name: dict(self.counted[name]) for name in self.in_force}

    async def probe_rule(self: "FakeWorld", name: str, api: str, limit_ms: int, topic: str | None = None) -> Answer:
        await self._called("probe_rule", (name, api))
        if self.unreachable:
            raise FaultError("nobody answers behind the wire proxy")
        rule = None if self.ineffective else self.in_force.get(name)
        if rule is not None:
            self.counted[name]["probed"] += 1
        answer = _answered(api) if rule is None else _met(rule, api, limit_ms)
        if topic is not None:
            true = {state.partition: state.leader_epoch for state in await self.partitions([topic])}
            highest = rule.epochs if rule else ()
            answer = replace(answer, epochs={n: min([e, *highest[n : n + 1]]) for n, e in true.items()})
        await self.clock.sleep_until_us(self.clock.now_us() + round(answer.ms * 1000))
        return answer

    async def ask_bootstrap(self: "FakeWorld", rack: str, broker: int, limit_ms: int) -> tuple[Any, Any]:
        await self._called("ask_bootstrap", (rack, broker))
        assert limit_ms > 0
        if self.no_proxy:
            raise FaultError("the wire proxy has no bootstrap address")
        for rule in () if self.ineffective else self.in_force.values():
            if rule.do == "lose_bootstrap" and broker in rule.brokers and rule.rack in (None, rack):
                self.counted[rule.name]["hit"] += 2 if rule.broker >= 0 else 1
                return ("answered", rule.broker) if rule.broker >= 0 else (rule.connection, None)
        return "answered", broker


def _answered(api: str) -> Answer:
    offered = {"versions": OFFERED, "features": FEATURES} if api == "ApiVersions" else {}
    return Answer("answered", TRIP_MS, **offered)


def _met(rule: Rule, api: str, limit_ms: int) -> Answer:
    match rule.do:
        case "drop_request" | "drop_response":
            return Answer(rule.connection, TRIP_MS if rule.connection == "closed" else limit_ms)
        case "close_mid_frame":
            return Answer("closed", TRIP_MS)
        case "delay_request" | "delay_response":
            return Answer("answered", TRIP_MS + rule.delay_ms)
        case "answer_error" | "throttle_response":
            answer = next((answer for answer in rule.answers if not answer.is_plain), rule.plain_answer)
            assert answer is not None
            if answer.lost:
                return Answer(answer.connection, TRIP_MS if answer.connection == "closed" else limit_ms)
            errors = frozenset({answer.error} - {0})
            return Answer("answered", TRIP_MS + answer.after_ms, errors, throttle_ms=answer.throttle_ms)
        case "cap_versions":
            capped = {api: version for api, version in rule.versions.items() if version is not None}
            kept = {api: version for api, version in OFFERED.items() if api not in rule.versions}
            return Answer("answered", TRIP_MS, versions=kept | capped, features=FEATURES | dict(rule.features))
        case _:
            return _answered(api)
