"""Which plain modes can this server run besides SGLang's zero steps, and why not the others?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trimtab_sglang.lease import PLAIN_COLD, PLAIN_NATIVE, Mode
from trimtab_sglang.plain_memory import PlainMemory

WORKER = "EAGLEWorkerV2"
Server = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PlainOffer:
    """What Hello says of plain decoding.

    Attributes:
        modes: Plain modes on offer besides SGLang's zero steps.
        refused: The others, and why not.
        memory: What native plain takes; None where it is not offered.
    """

    modes: tuple[Mode, ...] = ()
    refused: Mapping[Mode, str] = field(default_factory=dict)
    memory: PlainMemory | None = None

    @property
    def native(self) -> bool:
        """Whether native plain is on offer."""
        return PLAIN_NATIVE in self.modes


NOTHING_OFFERED = PlainOffer()


def _on(name: str) -> Callable[[Server], bool]:
    return lambda server: bool(server.get(name))


def _above_one(name: str) -> Callable[[Server], bool]:
    return lambda server: int(server.get(name) or 1) > 1


# A token that was not drawn from the draft model's distribution would be tested against it.
LOSSY: tuple[tuple[Callable[[Server], bool], str], ...] = (
    (_on("speculative_use_rejection_sampling"), "rejection sampling: the draft probabilities would be stand-ins"),
    (_on("speculative_use_block_verification"), "block verification: the draft probabilities would be stand-ins"),
)
SEVERAL_RANKS: tuple[tuple[Callable[[Server], bool], str], ...] = (
    (_above_one("tp_size"), "not proven with several ranks"),
)
NOT_PROVEN: tuple[tuple[Callable[[Server], bool], str], ...] = (
    *SEVERAL_RANKS,
    (_above_one("pp_size"), "not proven with pipeline parallelism"),
    (_on("enable_dp_attention"), "not proven with data-parallel attention"),
    (_on("enable_two_batch_overlap"), "not proven with two-batch overlap"),
    (_on("enable_pdmux"), "not proven with prefill/decode multiplexing"),
    (_on("enable_lora"), "not proven with LoRA"),
    (_on("lora_paths"), "not proven with LoRA"),
    (_on("enable_hisparse"), "not proven with hierarchical sparse attention"),
    (lambda server: server.get("disaggregation_mode") not in (None, "", "null"), "not proven with disaggregation"),
)
UNSAFE_VARIABLES = {
    "SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION": "its path has no round without drafts",
    "SGLANG_ENABLE_OVERLAP_PLAN_STREAM": "not proven with a stream for plans",
}


def why_not_native(server: Server, worker: Any, environ: Mapping[str, str]) -> str:
    """Why this server cannot decode plainly with its own decode forward; empty if it can.

    Args:
        server: SGLang's settings as resolved.
        worker: Its draft worker; None without speculation.
        environ: Environment variables.
    """
    if type(worker).__name__ != WORKER:
        return f"the speculative worker is {type(worker).__name__}, not {WORKER}" if worker else "no speculation"
    for applies, reason in (*LOSSY, *NOT_PROVEN):
        if applies(server):
            return reason
    for variable, reason in UNSAFE_VARIABLES.items():
        if environ.get(variable, "0").lower() not in ("", "0", "false"):
            return f"{variable}: {reason}"
    return _why_not_model(worker)


def _why_not_model(worker: Any) -> str:
    target, draft = worker.target_worker.model_runner, worker.draft_worker
    if getattr(target.model_config, "is_encoder_decoder", False):
        return "not proven with encoder-decoder models"
    if hasattr(worker.req_to_token_pool, "mamba_pool"):
        return "not proven with models that keep a state besides the KV cache"
    if getattr(getattr(target, "kv_index_translator", None), "is_translating", False):
        return "not proven with a unified memory pool"
    if getattr(draft, "seed_dsa_topk_from_draft_extend", False):
        return "not proven with drafts that share an index of attention"
    return ""


def why_not_cold(server: Server, zero_steps: bool, can_skip: bool) -> str:
    """Why zero-step rounds cannot leave the draft model out; empty if they can.

    Args:
        server: SGLang's settings as resolved.
        zero_steps: Whether SGLang built zero steps.
        can_skip: Whether this version of SGLang can skip the draft extend of such rounds.
    """
    if not zero_steps:
        return "zero steps are not among the candidates"
    if not can_skip:
        return "this SGLang always runs the draft model in rounds of zero steps"
    return next((reason for applies, reason in (*LOSSY, *SEVERAL_RANKS) if applies(server)), "")


def offer(native_refusal: str, cold_refusal: str, memory: PlainMemory | None) -> PlainOffer:
    """The offer, from why each mode is refused (empty: it is not)."""
    refusals = {PLAIN_NATIVE: native_refusal, PLAIN_COLD: cold_refusal}
    return PlainOffer(
        modes=tuple(mode for mode, why in refusals.items() if not why),
        refused={mode: why for mode, why in refusals.items() if why},
        memory=None if native_refusal else memory,
    )
