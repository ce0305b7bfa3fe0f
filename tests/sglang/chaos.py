"""The chaos run on a real SGLang engine: whatever happens to the controller, no request fails, stalls or changes.

`python tests/sglang/chaos.py --seconds 600 --seed 0` (`make chaos`) starts an engine and a controller, keeps requests
in flight, and kills, stops, floods, impersonates and restarts the controller at random. SGLang's own table is made so
that it always drafts, and the controller's policy so that it never does: the step log shows who decided. (On a CPU
drafting rarely pays: the plugin's guard would drop a lease that does.)
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from controller_process import ControllerProcess, short_folder
from disturbances import Disturber, Episode
from engine_server import ADAPTIVE_CONFIG, ENGINE_PYTHON, NO_ENGINE, EngineServer, EngineSettings, make_models
from prompts import ALL_TOKENS, prompts
from step_log import LoggedStep
from traffic import Traffic
from waiting import wait_until

PROMPTS = prompts(12, ALL_TOKENS, seed=7)
TOKENS = 160
CONCURRENT = 4
LED_STEPS = 0
# No batch ever gets into the second slot: its steps are built, and SGLang's own rule never runs them.
TABLE: Mapping[str, object] = {
    **ADAPTIVE_CONFIG, "1": {"candidate_steps": [1, 3]}, "64": {"candidate_steps": [LED_STEPS]},
}  # fmt: skip
POLICY = f'[policy]\nname = "fixed"\nparameters = {{ steps = {LED_STEPS} }}\n'
LEASE_LIFE_S = 2.0
LED_AGAIN_WITHIN_S = 2.0
LONGEST_GAP_S = 1.0
# What the clocks of two processes and a step that is under way may add.
SLACK_S = 0.3
CALM_S = 3.0
STOCK_S = 15.0


@dataclass(frozen=True)
class Outcome:
    """What a run showed.

    Attributes:
        episodes: What was done.
        answers: Requests that were answered.
        wrong: Of these, answers that are not plain decoding's.
        longest_gap_s: Longest time between two decode steps.
        longest_gap_at: What had been done to the controller before it, and how long before.
        stock_gap_s: The same of a server without the plugin.
        stock_late_s: For each absence, how long after it began the lease was still followed.
        led_late_s: For each return, how long after it the engine was led again.
        led_share: Share of all steps that the controller decided.
    """

    episodes: Sequence[Episode]
    answers: int
    wrong: int
    longest_gap_s: float
    longest_gap_at: str
    stock_gap_s: float
    stock_late_s: Sequence[float]
    led_late_s: Sequence[float]
    led_share: float

    def problems(self) -> list[str]:
        """What should not have happened; empty after a good run."""
        found = []
        if self.wrong:
            found.append(f"{self.wrong} of {self.answers} answers are not those of plain decoding")
        if self.longest_gap_s > max(LONGEST_GAP_S, self.stock_gap_s):
            found.append(
                f"{self.longest_gap_s:.2f} s without a decode step, {self.longest_gap_at}; "
                f"{self.stock_gap_s:.2f} s without the plugin"
            )
        found += [
            f"led {s:.2f} s after the controller was gone" for s in self.stock_late_s if s > LEASE_LIFE_S + SLACK_S
        ]
        found += [f"led again {s:.2f} s after its return" for s in self.led_late_s if s > LED_AGAIN_WITHIN_S + SLACK_S]
        return found

    def report(self) -> dict[str, object]:
        """The figures."""
        return {
            "episodes": dict(Counter(episode.kind for episode in self.episodes)),
            "answers": self.answers,
            "failed": 0,
            "wrong": self.wrong,
            "longest_gap_s": round(self.longest_gap_s, 3),
            "longest_gap_at": self.longest_gap_at,
            "longest_gap_without_plugin_s": round(self.stock_gap_s, 3),
            "stock_in_force_after_at_most_s": round(max(self.stock_late_s, default=0.0), 3),
            "led_again_after_at_most_s": round(max(self.led_late_s, default=0.0), 3),
            "led_share": round(self.led_share, 3),
            "problems": self.problems(),
        }


class ChaosRun:
    """One run.

    Args:
        models: The tiny models.
        folder: Where engines and controller keep their files; a short path.
        seed: Of everything that is drawn.
    """

    def __init__(self, models: Path, folder: Path, seed: int) -> None:
        self._models = models
        self._folder = folder
        self._seed = seed
        folder.mkdir(parents=True, exist_ok=True)
        self._table = folder / "table.json"
        self._table.write_text(json.dumps(TABLE))

    def expected(self) -> list[tuple[int, ...]]:
        """What plain decoding makes of every prompt."""
        with EngineServer(
            EngineSettings("noisy", "none", environment=OFF), self._models, self._folder / "plain"
        ) as engine:
            return [answer.tokens for answer in engine.generate_all(PROMPTS, TOKENS)]

    def stock_gap_s(self, seconds: float = STOCK_S) -> float:
        """The longest time between two decode steps of a server without the plugin under the same load."""
        with self._engine(OFF, "stock") as engine, Traffic(engine, PROMPTS, TOKENS, CONCURRENT):
            # What it did before there was traffic is no measure.
            began_ns = time.monotonic_ns()
            time.sleep(seconds)
            return longest_gap(engine.steps.since(began_ns))[0]

    def disturbed(self, seconds: float, expected: Sequence[tuple[int, ...]], stock_gap_s: float) -> Outcome:
        """Disturb the controller for so long."""
        with ControllerProcess(self._folder, POLICY) as controller:
            environment = {"TRIMTAB_CONTROLLER": controller.address, "TRIMTAB_MODE": "act"}
            with self._engine(environment, "engine") as engine:
                controller.wait_connected(engine.engine_id)
                with Traffic(engine, PROMPTS, TOKENS, CONCURRENT) as traffic:
                    wait_until("the engine is led", lambda: led(engine.steps.all()[-20:]), 20)
                    began_ns = time.monotonic_ns()
                    episodes = self._disturb(controller, seconds)
                steps = engine.steps.since(began_ns)
        gap_s, gap_ns = longest_gap(steps)
        return Outcome(
            episodes=episodes,
            answers=len(traffic.answers),
            wrong=sum(answer.tokens not in expected for answer in traffic.answers),
            longest_gap_s=gap_s,
            longest_gap_at=placed(gap_ns, episodes),
            stock_gap_s=stock_gap_s,
            stock_late_s=[s for episode in episodes if (s := stock_late_s(steps, episode)) is not None],
            led_late_s=[led_late_s(steps, episode) for episode in episodes],
            led_share=sum(step.steps == LED_STEPS for step in steps) / len(steps),
        )

    def _disturb(self, controller: ControllerProcess, seconds: float) -> list[Episode]:
        disturber = Disturber(controller, self._seed)
        deadline, episodes = time.monotonic() + seconds, []
        while time.monotonic() < deadline:
            episodes.append(disturber.next())
            print(f"{episodes[-1].kind}", file=sys.stderr)
            time.sleep(CALM_S)
        return episodes

    def _engine(self, environment: Mapping[str, str], name: str) -> EngineServer:
        arguments = {"speculative-adaptive-config": str(self._table)}
        settings = EngineSettings("noisy", arguments=arguments, environment=environment)
        return EngineServer(settings, self._models, self._folder / name)


OFF = {"TRIMTAB_MODE": "off"}


def led(steps: Sequence[LoggedStep]) -> bool:
    """Whether the controller decided every one of these steps."""
    return len(steps) > 0 and all(step.steps == LED_STEPS for step in steps)


def longest_gap(steps: Sequence[LoggedStep]) -> tuple[float, int]:
    """The longest time between two of these steps in s, and when it began."""
    gaps = (((later.at_ns - earlier.at_ns) / 1e9, earlier.at_ns) for earlier, later in pairwise(steps))
    return max(gaps, default=(0.0, 0))


def placed(at_ns: int, episodes: Sequence[Episode]) -> str:
    """Where a moment lies in the course of a run."""
    before = [episode for episode in episodes if episode.gone_ns <= at_ns]
    if not before:
        return "before anything was done"
    return f"{(at_ns - before[-1].gone_ns) / 1e9:.1f} s after it was {before[-1].kind}"


def stock_late_s(steps: Sequence[LoggedStep], episode: Episode) -> float | None:
    """How long after the controller was gone its lease was still followed; None if it came back before that ended."""
    if episode.begun_ns - episode.gone_ns < LEASE_LIFE_S * 1e9:
        return None
    followed = [s.at_ns for s in steps if episode.gone_ns < s.at_ns < episode.begun_ns and s.steps == LED_STEPS]
    return (max(followed) - episode.gone_ns) / 1e9 if followed else 0.0


def led_late_s(steps: Sequence[LoggedStep], episode: Episode) -> float:
    """How long after the controller was back the engine was led."""
    after = (step.at_ns for step in steps if step.at_ns >= episode.back_ns and step.steps == LED_STEPS)
    return (next(after, episode.back_ns + 60_000_000_000) - episode.back_ns) / 1e9


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and report; 0 if nothing happened that should not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long to disturb the controller")
    parser.add_argument("--seed", type=int, default=0, help="of what is done and how long")
    parser.add_argument("--keep", type=Path, help="folder for models and logs, with a short path; gone otherwise")
    options = parser.parse_args(arguments)
    if not ENGINE_PYTHON.exists():
        print(NO_ENGINE, file=sys.stderr)
        return 1
    with nullcontext(options.keep) if options.keep else short_folder() as folder:
        make_models(folder / "models")
        run = ChaosRun(folder / "models", folder, options.seed)
        expected, stock_gap_s = run.expected(), run.stock_gap_s()
        outcome = run.disturbed(options.seconds, expected, stock_gap_s)
    print(json.dumps(outcome.report(), indent=2))
    return 1 if outcome.problems() else 0


if __name__ == "__main__":
    sys.exit(main())
