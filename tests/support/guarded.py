"""The plugin's guard beside a simulated engine: it sees the rows of every step, and its verdicts are kept."""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.domain import StepRow
from trimtab.policies.registry import policy_factory
from trimtab.replay.environment import Environment
from trimtab.replay.simulation.drivers import SessionDriver, StepResult, play
from trimtab_sglang.guard import Guard, Harm
from trimtab_sglang.rows import ABSENT, Row


@dataclass(frozen=True)
class Verdict:
    """Harm that the guard found, and when, in seconds since the start of the simulation."""

    at_s: float
    harm: Harm


class GuardedDriver(SessionDriver):
    """A simulated engine whose guard looks on. Verdicts have no consequences, so that every one shows."""

    verdicts: list[Verdict]
    guard: Guard

    def _row(self, result: StepResult) -> StepRow:
        """The row of the step, as the guard sees it as well."""
        row = super()._row(result)
        harm = self.guard.watch(plugin_row(row))
        if harm is not None:
            self.verdicts.append(Verdict(result.end_ms / 1e3, harm))
        return row


def verdicts_on(environment: Environment, policy: str, steps: int | None = None) -> list[Verdict]:
    """Every verdict of the guard on this environment under a policy; `steps` for the fixed one."""
    parameters = {} if steps is None else {"steps": str(steps)}
    driver = GuardedDriver(environment, policy, policy_factory(policy, parameters))
    driver.guard, driver.verdicts = Guard(), []
    play(environment, driver)
    return driver.verdicts


def plugin_row(row: StepRow) -> Row:
    """The row as the plugin makes it."""
    return Row(
        launch_id=row.launch_id,
        step=row.step,
        result_ns=row.result_ns,
        mode=row.mode,
        lease_version=row.lease_version,
        table_entry=ABSENT if row.table_entry is None else row.table_entry,
        batch_size=row.batch_size,
        padded_batch_size=row.padded_batch_size or row.batch_size,
        offered=row.fresh.offered,
        accepted=row.fresh.accepted,
        fresh_requests=row.fresh_requests,
        stale_offered=row.stale.offered,
        stale_accepted=row.stale.accepted,
        stale_requests=row.stale_requests,
        emitted_tokens=row.emitted_tokens,
        step_ns=row.step_ns or ABSENT,
        wall_gap_ns=row.wall_gap_ns or ABSENT,
        prefill_tokens=row.prefill_tokens,
        context_tokens_sum=ABSENT if row.context_tokens_sum is None else row.context_tokens_sum,
        context_tokens_max=ABSENT if row.context_tokens_max is None else row.context_tokens_max,
        retracted_requests=0,
        accepted_worst_decile=0.0,
        catch_up_ns=ABSENT if row.catch_up_ns is None else row.catch_up_ns,
        flags=int(row.flags),
        missed_tokens=row.missed_tokens,
        caught_up_tokens=row.caught_up_tokens,
    )
