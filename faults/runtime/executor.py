"""Walks a timeline: each step at its time, journal first, every started fault healed whatever happens.

Rules. A step's journal goes ``intended`` (targets and undo known, nothing touched yet), ``injected``, ``witnessed``
(once or more), ``healing``, ``healed``; or ``failed`` with the reason, after which it is healed all the same. A step
that finds nothing to hit only fails. Steps run side by side, so overlapping faults heal in any order, and one that
fails stops no other. If the executor is cancelled every open fault is undone at once, without waiting for the cluster
to show it. A heal that fails is raised at the end, when everything has been tried.
"""

import asyncio
from collections.abc import Callable

from aftershock.errors import AftershockError, FaultError
from aftershock.faults.kinds.fault import Scene, Strike
from aftershock.faults.runtime.record import NOTHING, Clock, Entry, Journal, State, Targets, Undo, Witness
from aftershock.faults.runtime.undo import perform
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, patiently, to_the_end
from aftershock.faults.runtime.world import World
from aftershock.faults.timeline.timeline import Step, Timeline

Say = Callable[[str], None]


async def execute(
    timeline: Timeline, world: World, journal: Journal, clock: Clock, say: Say, *, rehearse: bool = False
) -> None:
    """Run every step, counting its time from now. ``say`` gets a line of prose for each thing that happens.

    A rehearsal is the negative control: targets are resolved and witnesses asked at the same times, nothing is done.

    Raises FaultError with every fault that could not be healed.
    """
    began_us = clock.now_us()
    kind = _Rehearsal if rehearse else _StepRun
    runs = [kind(step, world, journal, clock, say) for step in timeline.steps]
    tasks = [asyncio.create_task(run.run(began_us + run.step.at_ms * 1000)) for run in runs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await to_the_end(asyncio.wait(tasks) if tasks else asyncio.sleep(0))
    broken = [f"{run.step.id} could not be healed: {run.unhealed}" for run in runs if run.unhealed]
    if broken:
        raise FaultError("; ".join(broken))


class _StepRun:
    """One step on its way. ``unhealed`` says why its heal failed, if it did."""

    nothing_left = "the action is the fault: nothing is left to undo"

    def __init__(self, step: Step, world: World, journal: Journal, clock: Clock, say: Say) -> None:
        self.step = step
        self.scene = Scene(world, clock, step.id)
        self.journal = journal
        self.say = say
        self.targets = Targets()
        self.undo = NOTHING
        self.unhealed: str | None = None

    async def run(self, at_us: int) -> None:
        await self.scene.clock.sleep_until_us(at_us)
        fault = self.step.fault()
        try:
            strike = await patiently(lambda: fault.aim(self.scene, self.step.draws), self.scene.clock, READ_DEADLINE_MS)
        except Exception as error:  # noqa: BLE001 -- one step's failure, of whatever sort, must not stop the others
            self._failed(error)
            return
        self.targets, self.undo = strike.targets, self._undo_of(strike)
        until_us = None if self.step.for_ms is None else at_us + self.step.for_ms * 1000
        await self._strike(strike, until_us)

    async def _strike(self, strike: Strike, until_us: int | None) -> None:
        """From the first line in the journal on, the undo is always performed and the last line always written."""
        self._record("intended")
        try:
            await self._harm_and_undo(strike, until_us)
            await self._confirm(strike)
        except asyncio.CancelledError:
            self._closed("undone at an interrupt; not seen to have taken hold")
            raise
        self._closed(None if self.undo != NOTHING else self.nothing_left)

    async def _harm_and_undo(self, strike: Strike, until_us: int | None) -> None:
        try:
            await self._harm(strike, until_us)
        except Exception as error:  # noqa: BLE001 -- as above, and the undo is owed whatever went wrong
            self._failed(error)
        finally:
            await to_the_end(self._undo())

    def _undo_of(self, strike: Strike) -> Undo:
        return strike.undo

    async def _harm(self, strike: Strike, until_us: int | None) -> None:
        await strike.inject()
        if until_us is None:
            self.undo = strike.undo_after
        self._record("injected")
        self.say(f"{self.step.id}: in force on {_whom(self.targets)}")
        await strike.hold(until_us, self._witnessed)

    async def _undo(self) -> None:
        if self.undo == NOTHING:
            return
        try:
            self._record("healing")
        finally:  # a journal that can't be written (a full disk) is no reason to leave things broken
            try:
                await perform(self.undo, self.scene.world, self.scene.clock)
            except Exception as error:  # noqa: BLE001 -- reported at the end, after every other heal was tried
                self.unhealed = _sentence(error)

    async def _confirm(self, strike: Strike) -> None:
        if self.undo == NOTHING or self.unhealed is not None:
            return
        try:
            await strike.confirm_healed()
        except Exception as error:  # noqa: BLE001 -- reported at the end, as above
            self.unhealed = _sentence(error)

    def _closed(self, why: str | None) -> None:
        if self.unhealed is None:
            self._record("healed", why=why)
            self.say(f"{self.step.id}: healed" if self.undo != NOTHING else f"{self.step.id}: done")
        else:
            self._record("failed", why=f"the heal failed: {self.unhealed}")
            self.say(f"{self.step.id}: could not be healed: {self.unhealed}")

    def _witnessed(self, witness: Witness) -> None:
        self._record("witnessed", witness=witness)
        if not witness.ok:
            self.say(
                f"{self.step.id}: not seen: {witness.what} {witness.observed:g} of {witness.asked:g} {witness.unit}"
            )

    def _failed(self, error: Exception) -> None:
        self._record("failed", why=_sentence(error))
        self.say(f"{self.step.id}: failed: {_sentence(error)}")

    def _record(self, state: State, witness: Witness | None = None, why: str | None = None) -> None:
        self.journal.record(Entry(self.step.id, self.step.kind, state, self.targets, self.undo, witness, why))


class _Rehearsal(_StepRun):
    """One step of a rehearsal: nothing is done, so nothing is undone, and a witness that speaks is the one to mend."""

    nothing_left = "a rehearsal: nothing was injected"

    def _undo_of(self, strike: Strike) -> Undo:  # noqa: ARG002 -- whatever it would have done
        return NOTHING

    async def _harm(self, strike: Strike, until_us: int | None) -> None:
        self._record("injected", why=self.nothing_left)
        self.say(f"{self.step.id}: would be in force on {_whom(self.targets)}")
        await strike.hold(until_us, lambda witness: self._record("witnessed", witness=witness))


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, AftershockError) else f"{type(error).__name__}: {error}"


def _whom(targets: Targets) -> str:
    brokers = ", ".join(f"node {broker}" for broker in targets.brokers)
    return ", ".join(filter(None, (brokers, *targets.links, *targets.topics, *targets.clients))) or "whatever it meets"
