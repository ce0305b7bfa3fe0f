"""Long gaps behind prefill are no cost; a step that is itself a hundred times slower is one, up to the decision."""

from __future__ import annotations

from support.step_rows import depth_counts, step_row
from trimtab.domain import Mode, StepFlag, StepRow, modes_of, speculate
from trimtab.policies.contract import PolicyContext
from trimtab.policies.goodput import GoodputPolicy
from trimtab.session.measured import Window

MS = 1_000_000
CONTEXT = PolicyContext(modes_of([0, 1, 3]), (1,), (1, 2, 4, 8), incumbent=speculate(3), initial_steps=3)
SOUND_MS = {0: 6.0, 1: 6.6, 3: 7.8}
RUNS = [3, 3, 2, 1]


class Course:
    """A policy that is told of steps, a report at a time, and runs what it decides."""

    def __init__(self) -> None:
        self.policy = GoodputPolicy(CONTEXT)
        self.window = Window()
        self.step = 0
        self.now_ns = 0

    def report(self, steps: int = 25, slow: dict[int, float] | None = None, gap_ms: float = 0.0) -> None:
        """Steps under the present table. `slow` steps take another time; a gap of `gap_ms` lies before each."""
        table = self.policy.choose().table
        rows = [self._row(table[0].draw((self.step * 0.618) % 1), slow or {}, gap_ms) for _ in range(steps)]
        self.policy.learn(rows)
        self.window.add(rows, self.now_ns)

    def _row(self, mode: Mode, slow: dict[int, float], gap_ms: float) -> StepRow:
        self.step += 1
        ms = slow.get(mode.steps, SOUND_MS[mode.steps])
        self.now_ns += round((ms + gap_ms) * MS)
        depths = depth_counts(RUNS, mode.steps)
        return step_row(
            mode, len(RUNS), depths=depths, launch_id=self.step, step=self.step, result_ns=self.now_ns,
            step_ns=None if gap_ms else round(ms * MS), wall_gap_ns=round((ms + gap_ms) * MS),
            prefill_tokens=4000 if gap_ms else 0, table_entry=0, lease_version=1,
            flags=StepFlag.GRAPH | (StepFlag.GAP if gap_ms else StepFlag.NONE),
        )  # fmt: skip

    def expected_ms(self, steps: int) -> float:
        """What the policy thinks that a step of this mode takes."""
        (band,) = self.policy.choose().bands
        found = next(c.step_ms for c in band.candidates if c.mode.steps == steps)
        assert found is not None
        return found

    @property
    def chosen(self) -> int:
        """Drafts of the table's first choice."""
        return self.policy.choose().table[0].mode.steps


def settled() -> Course:
    course = Course()
    for _ in range(20):
        course.report()
    assert course.chosen == 3
    return course


def test_gaps_of_half_a_second_behind_prefill_change_neither_cost_nor_decision() -> None:
    course = settled()
    before = course.expected_ms(3)
    for _ in range(20):
        course.report(gap_ms=500)
    assert course.chosen == 3
    assert abs(course.expected_ms(3) / before - 1) < 0.02
    course.report()
    measured = course.window.measure()
    assert measured.step_ms is not None
    assert measured.step_ms < 10


def test_steps_that_are_a_hundred_times_slower_are_a_cost_and_another_mode_is_chosen() -> None:
    course = settled()
    for _ in range(12):
        course.report(slow={3: 780.0})
    assert course.chosen != 3
    assert course.expected_ms(3) > 2 * SOUND_MS[3]


def test_a_single_wedged_step_shows_in_the_figures_and_moves_nothing() -> None:
    course = settled()
    course.report(steps=1, slow={3: 780.0})
    measured = course.window.measure()
    assert measured.step_ms is not None
    assert measured.step_ms > 8
    course.report()
    assert course.chosen == 3


def test_a_host_that_stands_still_now_and_then_does_not_make_the_guard_close() -> None:
    course = settled()
    for _ in range(40):
        course.report(steps=10)
        course.report(steps=1, slow={3: 1_500.0})
        assert course.policy.choose().bands[0].reason != "guard"
    assert course.chosen == 3
