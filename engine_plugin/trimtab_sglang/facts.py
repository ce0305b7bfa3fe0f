"""What the scheduler is: read once when it is complete, from whatever this version of SGLang calls it."""

from __future__ import annotations

import os
import platform
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trimtab_sglang.footprint import UNKNOWN_COST, CandidateCost, candidate_cost
from trimtab_sglang.lease import PLAIN_NATIVE, Mode, modes_of
from trimtab_sglang.plain_offer import NOTHING_OFFERED, PlainOffer
from trimtab_sglang.startup_check import Outcome, judge, start_settings
from trimtab_sglang.topology import topology_reasons


@dataclass(frozen=True, slots=True)
class HookStatus:
    """One place in SGLang and whether our hook is in it; without an `optional` one the plugin acts all the same."""

    target: str
    applied: bool
    reason: str = ""
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Ranks:
    """Parallel sizes, and this process's place in them.

    Attributes:
        dp_size: Replicas, or under `dp_attention` the groups of it.
        dp_rank: Of this replica; 0 under `dp_attention`, whose ranks are one engine.
        cp_size: Context parallel, of prefill or of decoding.
        nodes: Hosts that the server spans.
    """

    tp_size: int = 1
    pp_size: int = 1
    dp_size: int = 1
    tp_rank: int = 0
    pp_rank: int = 0
    dp_rank: int = 0
    dp_attention: bool = False
    cp_size: int = 1
    nodes: int = 1

    @property
    def speaks(self) -> bool:
        """Whether this process holds the stream to the controller."""
        return self.tp_rank == 0 and self.pp_rank == 0


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What Hello says of the engine. `server` holds SGLang's resolved settings by their own names."""

    sglang_version: str
    ranks: Ranks
    server: Mapping[str, Any] = field(default_factory=dict)
    adaptive: bool = False
    candidate_steps: tuple[int, ...] = ()
    graph_batch_sizes: tuple[int, ...] = ()
    max_running_requests: int = 0
    kv_capacity_tokens: int = 0
    device_name: str = ""
    candidate_cost: CandidateCost = UNKNOWN_COST
    boot_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    plain: PlainOffer = NOTHING_OFFERED

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Modes that a lease can ask for. Beside a fixed-step server these are its steps and native plain."""
        steps = self.candidate_steps or ((self.fixed_steps,) if self.plain.native else ())
        return tuple(sorted((*self.plain.modes, *modes_of(steps)), key=lambda mode: mode.steps))

    @property
    def fixed_steps(self) -> int:
        """Steps of a server that has no others."""
        return int(self.number("speculative_num_steps"))

    def text(self, name: str) -> str:
        """A server setting as text; empty if it is not set."""
        value = self.server.get(name)
        return "" if value is None else str(value)

    def number(self, name: str, default: float = 0) -> float:
        """A server setting as a number."""
        value = self.server.get(name)
        return value if isinstance(value, int | float) else default


def read_facts(
    scheduler: Any,
    candidate_steps: Sequence[int] | None,
    graph_sizes: Sequence[int] | None,
    plain: PlainOffer = NOTHING_OFFERED,
    candidate_bytes: int = 0,
) -> EngineFacts:
    """The facts of a complete scheduler.

    Args:
        scheduler: SGLang's `Scheduler`.
        candidate_steps: Steps of the policy that we decorate; None where SGLang built none.
        graph_sizes: Sizes with captured graphs as that policy was told, or None.
        plain: Plain modes besides zero steps.
        candidate_bytes: Device memory that building the candidates took, as far as it was measured.
    """
    server = server_settings(scheduler.server_args)
    return EngineFacts(
        sglang_version=sglang_version(),
        ranks=read_ranks(scheduler, server),
        server=server,
        adaptive=candidate_steps is not None,
        candidate_steps=tuple(sorted(candidate_steps or ())),
        graph_batch_sizes=tuple(graph_sizes or _graph_sizes(server)),
        max_running_requests=int(getattr(scheduler, "max_running_requests", 0) or 0),
        kv_capacity_tokens=int(getattr(scheduler, "max_total_num_tokens", 0) or 0),
        device_name=device_name(str(server.get("device") or "")),
        plain=plain,
        candidate_cost=candidate_cost(scheduler, candidate_steps or (), candidate_bytes),
    )


def bare_facts(scheduler: Any) -> EngineFacts:
    """What can be said of a scheduler that could not be read: its version and place, as far as they are known."""
    try:
        server = server_settings(scheduler.server_args)
    except Exception:  # noqa: BLE001 - the reason why it could not be read may be just here
        server = {}
    try:
        ranks = read_ranks(scheduler, server)
    except Exception:  # noqa: BLE001
        ranks = Ranks()
    return EngineFacts(sglang_version=sglang_version(), ranks=ranks, server=server)


def sglang_version() -> str:
    """SGLang's version; "embedded" where there is none."""
    try:
        from importlib.metadata import version

        return version("sglang")
    except ImportError:
        return "embedded"


def python_version() -> str:
    """Python's version."""
    return platform.python_version()


def torch_version() -> str:
    """The version of torch in this process; empty if it is not loaded."""
    import sys

    return str(getattr(sys.modules.get("torch"), "__version__", ""))


def device_name(device: str) -> str:
    """The name of this process's GPU by its driver; where there is none, what SGLang calls the device."""
    import sys

    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        if device in ("", "cuda") and cuda is not None and cuda.is_available():
            return str(cuda.get_device_name())
    except Exception:  # noqa: BLE001 - a driver's errors are its own, and no name is worth a fuse
        return device or "cpu"
    return device or "cpu"


def server_settings(server_args: Any) -> dict[str, Any]:
    """SGLang's settings as resolved (0.5.20 on), or as they are."""
    resolve = getattr(server_args, "resolved_dict", None)
    if callable(resolve):
        return dict(resolve())
    return {name: getattr(server_args, name) for name in vars(server_args)}


def read_ranks(scheduler: Any, server: Mapping[str, Any]) -> Ranks:
    """Sizes from the settings, ranks from SGLang's parallel context or the scheduler's own attributes."""
    sources = [_parallel_context(), getattr(scheduler, "ps", None), scheduler]

    def rank(name: str) -> int:
        for source in sources:
            value = _read(source, name)
            if isinstance(value, int):
                return value
        return 0

    def size(name: str) -> int:
        return int(server.get(name) or 1)

    # Until 0.5.20 `dp_size` with a switch, later a size of its own beside `dp_size`.
    groups = max(size("attn_dp_size"), size("dp_size") if server.get("enable_dp_attention") else 1)
    return Ranks(
        tp_size=size("tp_size"),
        pp_size=size("pp_size"),
        dp_size=max(groups, size("dp_size")),
        tp_rank=rank("tp_rank"),
        pp_rank=rank("pp_rank"),
        dp_rank=0 if groups > 1 else rank("dp_rank"),
        dp_attention=groups > 1,
        cp_size=max(size("attn_cp_size"), size("dcp_size")),
        nodes=size("nnodes"),
    )


def in_pipeline() -> bool:
    """Whether this process is one of several pipeline stages."""
    stages = _read(_parallel_context(), "pp_size")
    return isinstance(stages, int) and stages > 1


def _parallel_context() -> Any:
    try:
        from sglang.srt.runtime_context import get_parallel

        return get_parallel()
    except ImportError:
        return None


def _read(source: Any, name: str) -> Any:
    """An attribute that may be missing or, in SGLang's contexts, raise until it is written."""
    try:
        return getattr(source, name, None)
    except Exception:  # noqa: BLE001 - which error is a matter of the version
        return None


def _graph_sizes(server: Mapping[str, Any]) -> tuple[int, ...]:
    if server.get("disable_cuda_graph"):
        return ()
    sizes = server.get("cuda_graph_bs_decode") or server.get("cuda_graph_bs")
    return tuple(sorted(sizes)) if isinstance(sizes, list | tuple) else ()


def reasons_to_observe(
    facts: EngineFacts, hooks: Sequence[HookStatus], known_version: bool, dp_attention: bool = False
) -> list[str]:
    """Why the plugin may only report beside this server; empty if it may act.

    `dp_attention`: the operator wants it to act under data-parallel attention.
    """
    reasons = [f"hook not in place: {h.target}: {h.reason}" for h in hooks if not h.applied and not h.optional]
    if not known_version:
        reasons.append(f"SGLang {facts.sglang_version} is not one that this plugin was tried with")
    reasons += topology_reasons(facts.ranks, facts.server, dp_attention, os.environ)
    if facts.adaptive and len(facts.candidate_steps) > 1:
        # SGLang built the states, so what the ranks do is judged by their own rule.
        verdict = judge(replace(start_settings(facts.server, facts.candidate_steps), dp_attention=False))
        return reasons if verdict.acts or facts.plain.native else [*reasons, verdict.reason]
    if facts.plain.native:
        return reasons
    if facts.adaptive:
        reasons.append(f"only one candidate step count: {list(facts.candidate_steps)}")
    else:
        reasons.append(_why_not_adaptive(facts))
    if facts.text("speculative_algorithm"):
        reasons += [f"no {mode}: {why}" for mode, why in facts.plain.refused.items() if mode == PLAIN_NATIVE]
    return reasons


def _why_not_adaptive(facts: EngineFacts) -> str:
    if not facts.text("speculative_algorithm"):
        return "the server runs without speculative decoding"
    if facts.server.get("speculative_adaptive"):
        return "SGLang did not build its adaptive policy, or another plugin replaced it"
    verdict = judge(start_settings(facts.server))
    why = f" ({verdict.reason})" if verdict.outcome is Outcome.REFUSE_ADAPTIVE else ""
    return f"the server runs without --speculative-adaptive, so there is one step count only{why}"
