"""An engine's side of the plugin in simulated time: reports at the report interval, and the lease machine.

Whoever plays decode steps tells it every step's row; it talks to a session of the controller as a live engine would.
"""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.domain import EngineInfo, InForce, Mode, Report, Source, StepRow
from trimtab.errors import PolicyError
from trimtab.policies.registry import PolicyFactory
from trimtab.session.engine_session import EngineSession, SessionSettings
from trimtab.session.events import Answered, Connected, Effect, Note, Reported, SendLease, Ticked
from trimtab_sglang.lease import LeaseMachine, check_lease

REPORT_INTERVAL_MS = 250.0
LEASE_TTL_S = 2.0


class EngineSide:
    """One run of an engine, wired to a session of the controller. Owned by whoever plays its steps.

    A report leaves every interval with the steps that ended by then; a lease that comes back is in force from the
    next step on. The session renews its leases at half life, so one is in force from the first step to the last.

    For every step, in this order: `choose`, `pass_time` up to its end, `note` with its row.

    Args:
        info: What the engine says of itself; its `in_force.mode`, or else its first mode, runs while there is no lease.
        policy_name: Name of the policy, for the session.
        factory: Makes the policy.
        interval_ms: Report interval.
        seed: Seed of the policy.

    Attributes:
        session: The controller's session.
        machine: The plugin's lease machine.
        start: What runs while there is no lease.

    Raises:
        PolicyError: The policy cannot work with the modes of this engine.
    """

    def __init__(
        self,
        info: EngineInfo,
        policy_name: str,
        factory: PolicyFactory,
        interval_ms: float = REPORT_INTERVAL_MS,
        seed: int = 0,
    ) -> None:
        settings = SessionSettings(report_interval_s=interval_ms / 1e3, lease_ttl_s=LEASE_TTL_S, seed=seed)
        self.session = EngineSession(policy_name, factory, settings)
        self.machine = LeaseMachine()
        self.start = info.in_force.mode or info.modes[0]
        self._name = str(info.key)
        self._interval_ms = interval_ms
        self._tick_ms = min(interval_ms / 2, LEASE_TTL_S * 1e3 / 4)
        self._report_at_ms = interval_ms
        self._tick_at_ms = self._tick_ms
        self._due_ms = min(self._report_at_ms, self._tick_at_ms)
        self._rows: list[StepRow] = []
        self._last = info.in_force
        self._reports = 0
        self._apply(self.session.step(Connected(info), 0), 0)

    def choose(self, batch_size: int) -> Mode | None:
        """What the lease says; None while there is none."""
        return self.machine.choose(batch_size)

    def pass_time(self, now_ms: float) -> None:
        """Send what was due before this moment."""
        while now_ms > self._due_ms:
            if self._tick_at_ms < self._report_at_ms:
                now_ns = round(self._tick_at_ms * 1e6)
                self._tick_at_ms += self._tick_ms
                self._apply(self.session.step(Ticked(), now_ns), now_ns)
            else:
                now_ns = round(self._report_at_ms * 1e6)
                self._report_at_ms += self._interval_ms
                self._apply(self.session.step(Reported(self._report(now_ns)), now_ns), now_ns)
            self._due_ms = min(self._report_at_ms, self._tick_at_ms)

    def note(self, row: StepRow) -> None:
        """Keep the row of a step for the next report."""
        self._rows.append(row)

    def _apply(self, effects: Sequence[Effect], now_ns: int) -> None:
        for effect in effects:
            if isinstance(effect, SendLease):
                check_lease(effect.lease)
                accepted = self.machine.adopt(effect.lease)
                self.session.step(Answered(effect.nonce, effect.lease.version, accepted), now_ns)
            elif isinstance(effect, Note) and effect.event == "policy_unusable":
                raise PolicyError(f"{self._name}: {effect.fields['why']}")

    def _report(self, now_ns: int) -> Report:
        rows = tuple(self._rows)
        self._rows.clear()
        self._reports += 1
        if rows:
            last = rows[-1]
            source = Source.LEASE if last.lease_version else Source.STOCK
            self._last = InForce(source, last.mode, last.lease_version)
        return Report(
            seq=self._reports,
            now_ns=now_ns,
            rows=rows,
            in_force=self._last,
            decode_steps=self.machine.step,
            switches=self.machine.switches,
            waiting_requests=(rows[-1].waiting_requests or 0) if rows else 0,
            running_requests=(rows[-1].running_requests or 0) if rows else 0,
        )
