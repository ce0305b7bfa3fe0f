"""Would this server's steps be under control, and if not, why? Judged from its settings, before weights load.

Pure: settings in, a verdict out. `python -m trimtab_sglang.host --server FLAGS` shows it, the scheduler's log says it
at start-up, and what it refuses the plugin only observes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

ALGORITHMS = ("EAGLE", "EAGLE3")


class Outcome(StrEnum):
    """What becomes of the server's steps.

    OK: all candidates. TRIM: only some of them fit. REFUSE_ADAPTIVE: the server runs, with fixed steps. REFUSE: it
    would not start, or there is nothing to choose from.
    """

    OK = "ok"
    TRIM = "trim"
    REFUSE_ADAPTIVE = "refuse_adaptive"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class StartSettings:
    """What decides, by SGLang's settings.

    Attributes:
        algorithm: `--speculative-algorithm` as resolved.
        topk: `--speculative-eagle-topk`.
        num_steps: `--speculative-num-steps`, the steps that the server starts with.
        num_draft_tokens: `--speculative-num-draft-tokens`; 0 leaves it to SGLang.
        candidate_steps: Steps of the adaptive table, all slots together.
        largest_graph: Largest batch with a captured graph; 0 without graphs.
        logits_rows: Rows of the buffer that graphs write logits to; None where it grows with the candidates.
        graph_memory_gib: Device memory left for graphs; None if unknown.
        state_memory_gib: What one candidate takes of it; None if unknown.
    """

    algorithm: str = ""
    topk: int = 1
    num_steps: int = 0
    num_draft_tokens: int = 0
    candidate_steps: tuple[int, ...] = ()
    dp_attention: bool = False
    lora: bool = False
    pdmux: bool = False
    two_batch_overlap: bool = False
    multi_layer_eagle: bool = False
    largest_graph: int = 0
    logits_rows: int | None = None
    graph_memory_gib: float | None = None
    state_memory_gib: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome and what an operator can do about it.

    Attributes:
        outcome: What becomes of the steps.
        setting: The setting that decides, by its name in `StartSettings`; empty if all is well.
        reason: For people: what is wrong and what to do.
        fits: Candidates that can be controlled.
        needs_rows: Rows that graphs of the widest candidate write; 0 without graphs.
        offers_plain: Whether the target's own decode forward could be switched to without control of the steps.
    """

    outcome: Outcome
    setting: str = ""
    reason: str = ""
    fits: tuple[int, ...] = ()
    needs_rows: int = 0
    offers_plain: bool = False

    @property
    def acts(self) -> bool:
        """Whether steps are under control."""
        return self.outcome in (Outcome.OK, Outcome.TRIM)


Refusal = tuple[str, Callable[[StartSettings], bool], str]
# In this order: the first that applies is named. SGLang itself turns adaptive mode off for most of them.
NO_ADAPTIVE: tuple[Refusal, ...] = (
    (
        "algorithm",
        lambda s: s.algorithm not in ALGORITHMS,
        "it has no states to switch between; adaptive steps need EAGLE or EAGLE3",
    ),
    ("topk", lambda s: s.topk != 1, "trees of drafts have no adaptive steps; set --speculative-eagle-topk 1"),
    (
        "dp_attention",
        lambda s: s.dp_attention,
        "ranks would choose different steps; SGLang turns adaptive mode off under data-parallel attention",
    ),
    ("lora", lambda s: s.lora, "the draft worker keeps a snapshot of one step count; serve without LoRA"),
    ("pdmux", lambda s: s.pdmux, "prefill/decode multiplexing keeps backends that a switch would not reach"),
    (
        "two_batch_overlap",
        lambda s: s.two_batch_overlap,
        "a switch would lose the wrapper of the attention backend; drop --enable-two-batch-overlap",
    ),
    ("multi_layer_eagle", lambda s: s.multi_layer_eagle, "its worker has one step count only"),
)
# Without control of steps, switching to the target's own decode forward is not possible here either.
NO_PLAIN = ("algorithm", "dp_attention", "lora", "pdmux", "two_batch_overlap", "multi_layer_eagle")


def judge(settings: StartSettings) -> Verdict:
    """The verdict on these settings."""
    candidates = tuple(sorted(set(settings.candidate_steps)))
    needs_rows = settings.largest_graph * (max(candidates, default=0) + 1) if candidates else 0
    refused = [(name, reason) for name, applies, reason in NO_ADAPTIVE if applies(settings)]
    if refused:
        (name, reason), *_ = refused
        offers_plain = not any(other in NO_PLAIN for other, _ in refused)
        reason = f"{name} is {getattr(settings, name)!r}: {reason}"
        return Verdict(Outcome.REFUSE_ADAPTIVE, name, reason, needs_rows=needs_rows, offers_plain=offers_plain)
    width = settings.num_draft_tokens
    if width and width != settings.num_steps + 1:
        right = settings.num_steps + 1
        reason = f"num_draft_tokens is {width}: with {settings.num_steps} steps and topk 1 it must be {right}"
        return Verdict(Outcome.REFUSE, "num_draft_tokens", reason, needs_rows=needs_rows)
    if len(candidates) < 2:
        reason = f"candidate_steps is {list(candidates)}: there must be two step counts at least to choose from"
        return Verdict(Outcome.REFUSE, "candidate_steps", reason, fits=candidates, needs_rows=needs_rows)
    if settings.num_steps and settings.num_steps not in candidates:
        reason = f"num_steps is {settings.num_steps}: it must be one of {', '.join(map(str, candidates))}"
        return Verdict(Outcome.REFUSE, "num_steps", reason, candidates, needs_rows)
    return _trimmed(settings, candidates, needs_rows)


def _trimmed(settings: StartSettings, candidates: tuple[int, ...], needs_rows: int) -> Verdict:
    """Which of the candidates the buffers and the memory hold."""
    rows, setting, reason = settings.logits_rows, "", ""
    fits = candidates
    if rows is not None and needs_rows > rows:
        fits = tuple(k for k in fits if settings.largest_graph * (k + 1) <= rows)
        setting = "logits_rows"
        reason = f"graphs of {candidates[-1]} steps write {needs_rows} rows of logits into a buffer of {rows}"
    room, each = settings.graph_memory_gib, settings.state_memory_gib
    if room is not None and each and len(fits) * each > room:
        most = int(room / each)
        fits = tuple(sorted(_most_wanted(fits, settings.num_steps)[:most]))
        setting = "graph_memory_gib"
        reason = f"{len(candidates)} step counts of {each:g} GiB do not fit into {room:g} GiB; {most} do"
    if len(fits) < 2:
        return Verdict(Outcome.REFUSE, setting or "candidate_steps", reason, fits, needs_rows)
    if fits != candidates:
        left = ", ".join(map(str, fits))
        return Verdict(Outcome.TRIM, setting, f"{reason}: take the steps {left} only", fits, needs_rows)
    return Verdict(Outcome.OK, "", "", fits, needs_rows)


def _most_wanted(candidates: Sequence[int], start: int) -> list[int]:
    """The candidates, the ones to keep first: where the server starts, plain, the widest, then from below."""
    first = [k for k in (start, 0, candidates[-1]) if k in candidates]
    return list(dict.fromkeys([*first, *candidates]))


def start_settings(server: Mapping[str, Any], candidate_steps: Sequence[int] = ()) -> StartSettings:
    """The settings of a server, by SGLang's names; what this version calls otherwise counts as not set."""
    graphs = not server.get("disable_cuda_graph")
    largest = server.get("cuda_graph_max_bs_decode") or server.get("cuda_graph_max_bs") or 0
    return StartSettings(
        algorithm=str(server.get("speculative_algorithm") or ""),
        topk=int(server.get("speculative_eagle_topk") or 1),
        num_steps=int(server.get("speculative_num_steps") or 0),
        num_draft_tokens=int(server.get("speculative_num_draft_tokens") or 0),
        candidate_steps=tuple(candidate_steps),
        dp_attention=bool(server.get("enable_dp_attention")),
        lora=bool(server.get("enable_lora") or server.get("lora_paths")),
        pdmux=bool(server.get("enable_pdmux")),
        two_batch_overlap=bool(server.get("enable_two_batch_overlap")),
        multi_layer_eagle=bool(server.get("enable_multi_layer_eagle")),
        largest_graph=int(largest) if graphs else 0,
    )
