"""Executor of a timeline, which journals and injects each fault at its time, and heals every started fault.

The journal's states of a fault are ``intended`` (targets and undo known, nothing changed yet), ``injected``,
``witnessed`` (once or more), ``healing``, ``healed``. A fault that fails after ``intended`` is ``failed`` and is then
healed; a fault whose targets can't be resolved is only ``failed``. Faults run concurrently, and a failed fault stops no
other fault.

Each heal is verified before the fault is ``healed``, except if the executor is cancelled, which undoes every open fault
at once, without verification. Errors of heals are raised at the end, after all heals.
"""

import asyncio
from collections.abc import Callable

from aftershock.errors import AftershockError, FaultError
from aftershock.faults.kinds.fault import Injection, InjectionContext
from aftershock.faults.runtime.record import NOTHING, Clock, Entry, Journal, State, Targets, Witness
from aftershock.faults.runtime.undo import perform, verify_undo
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, run_to_completion
from aftershock.faults.targets.world import World
from aftershock.faults.timeline.timeline import Step, Timeline

Log = Callable[[str], None]


async def execute(
    timeline: Timeline, world: World, journal: Journal, clock: Clock, log: Log, *, rehearse: bool = False
) -> None:
    """Run every fault of a timeline, with times counted from now; raise FaultError with every fault left unhealed.

    A journal that can't be written raises OSError, or is named in the FaultError beside the unhealed faults.

    A rehearsal (negative control) resolves targets and reads witnesses at the timeline's times, but injects nothing.
    """
    began_us = clock.now_us()
    kind = _Rehearsal if rehearse else _StepRun
    runs = [kind(step, world, journal, clock, log) for step in timeline.steps]
    tasks = [asyncio.create_task(run.run(began_us + run.step.at_ms * 1000)) for run in runs]
    full_disk: OSError | None = None
    try:
        await asyncio.gather(*tasks)
    except OSError as error:
        full_disk = error
    finally:
        for task in tasks:
            task.cancel()
        await run_to_completion(asyncio.wait(tasks) if tasks else asyncio.sleep(0))
    unhealed = [f"the fault {run.step.id} could not be healed: {run.unhealed}" for run in runs if run.unhealed]
    if unhealed:
        cause = [f"the journal can't be written: {full_disk}"] if full_disk else []
        raise FaultError("; ".join(unhealed + cause)) from full_disk
    if full_disk:
        raise full_disk


class _StepRun:
    """Execution of one fault of a timeline; ``unhealed`` is the reason why the heal failed, or None."""

    rehearsal = False
    no_undo_reason = "the fault was a single action, which has no undo"

    def __init__(self, step: Step, world: World, journal: Journal, clock: Clock, log: Log) -> None:
        self.step = step
        self.context = InjectionContext(world, clock, step.id)
        self.journal = journal
        self.log = log
        self.targets = Targets()
        self.undo = NOTHING
        self.unhealed: str | None = None

    async def run(self, at_us: int) -> None:
        await self.context.clock.sleep_until_us(at_us)
        fault = self.step.fault()
        try:
            injection = await retry_refused(
                lambda: fault.resolve_targets(self.context, self.step.draws), self.context.clock, READ_DEADLINE_MS
            )
        except Exception as error:  # noqa: BLE001 -- a failure of one step must not stop the others
            self._record_failure(error)
            return
        self.targets, self.undo = injection.targets, NOTHING if self.rehearsal else injection.undo
        until_us = None if self.step.for_ms is None else at_us + self.step.for_ms * 1000
        # From the first journal line on, the undo is always performed and the last line always written.
        unkept: FaultError | None = None
        try:
            self._record("intended")
        except FaultError as error:  # it is in the journal, but not where another machine finds it
            unkept = error
        try:
            try:
                if unkept:
                    raise unkept  # noqa: TRY301 -- as any other failure of this step
                await self._inject_and_hold(injection, until_us)
            except Exception as error:  # noqa: BLE001 -- as above, and the undo is needed after any error
                self._record_failure(error)
            finally:
                await run_to_completion(self._perform_undo())
            if self.undo != NOTHING and self.unhealed is None:
                try:
                    await injection.confirm_healed()
                    await verify_undo(self.undo, self.context.world, self.context.clock)
                except Exception as error:  # noqa: BLE001 -- reported at the end, after every other heal was tried
                    self.unhealed = _sentence(error)
        except asyncio.CancelledError:
            self._finish("the fault was undone when the run was interrupted; the undo was not verified")
            raise
        self._finish(None if self.undo != NOTHING else self.no_undo_reason)

    async def _inject_and_hold(self, injection: Injection, until_us: int | None) -> None:
        await injection.inject()
        if until_us is None:
            self.undo = injection.undo_after
        self._record("injected")
        self.log(f"{self.step.id}: in force on {_describe(self.targets)}")
        await injection.hold(until_us, self._record_witness)

    async def _perform_undo(self) -> None:
        if self.undo == NOTHING:
            return
        try:
            self._record("healing")
        finally:  # the undo runs even if the journal can't be written (a full disk)
            try:
                await perform(self.undo, self.context.world, self.context.clock)
            except Exception as error:  # noqa: BLE001 -- reported at the end, after every other heal was tried
                self.unhealed = _sentence(error)

    def _finish(self, why: str | None) -> None:
        if self.unhealed is None:
            self._record("healed", why=why)
            self.log(f"{self.step.id}: healed" if self.undo != NOTHING else f"{self.step.id}: done")
        else:
            self._record("failed", why=f"the heal failed: {self.unhealed}")
            self.log(f"{self.step.id}: the fault could not be healed: {self.unhealed}")

    def _record_witness(self, witness: Witness) -> None:
        self._record("witnessed", witness=witness)
        if not witness.ok:
            observed = f"{witness.what} is {witness.observed:g} of {witness.asked:g} {witness.unit}"
            self.log(f"{self.step.id}: the witness does not see the fault: {observed}")

    def _record_failure(self, error: Exception) -> None:
        self._record("failed", why=_sentence(error))
        self.log(f"{self.step.id}: failed: {_sentence(error)}")

    def _record(self, state: State, witness: Witness | None = None, why: str | None = None) -> None:
        self.journal.record(Entry(self.step.id, self.step.kind, state, self.targets, self.undo, witness, why))


class _Rehearsal(_StepRun):
    """Rehearsal of one fault, which injects and undoes nothing, so a witness that sees the fault is wrong."""

    rehearsal = True
    no_undo_reason = "a rehearsal: nothing was injected"

    async def _inject_and_hold(self, injection: Injection, until_us: int | None) -> None:
        self._record("injected", why=self.no_undo_reason)
        self.log(f"{self.step.id}: the fault would be in force on {_describe(self.targets)}")
        await injection.hold(until_us, lambda witness: self._record("witnessed", witness=witness))


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, AftershockError) else f"{type(error).__name__}: {error}"


def _describe(targets: Targets) -> str:
    brokers = ", ".join(f"node {broker}" for broker in targets.brokers)
    targets_named = [name for name in (brokers, *targets.links, *targets.topics, *targets.clients) if name]
    return ", ".join(targets_named) or "all matching traffic"
