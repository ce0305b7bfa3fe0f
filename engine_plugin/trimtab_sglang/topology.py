"""On which arrangements of ranks can the plugin act, and why not on the others?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab_sglang.facts import Ranks

DP_ATTENTION_VARIABLE = "TRIMTAB_DP_ATTENTION"

# What the self-check and the README say.
SUPPORT = (
    ("one rank", "acts"),
    ("tensor parallel, one host", "acts: every rank adopts a decision at the same iteration"),
    ("data parallel (--dp-size)", "acts: every replica is an engine of its own, ID and ID/RANK, each with its lease"),
    (
        "data-parallel attention, one host",
        f"acts with {DP_ATTENTION_VARIABLE}=1; observes without: SGLang turns adaptive speculation off there",
    ),
    ("pipeline or context parallel, several hosts", "observes"),
)

# Data-parallel attention: settings under which its ranks would not stay together, if they are on.
UNFIT_SETTINGS = (
    ("enable_dp_attention_local_control_broadcast", "decisions would not reach every rank"),
    ("enable_multi_layer_eagle", "SGLang's multi-layer worker has one step count only"),
    ("enable_two_batch_overlap", "SGLang cannot change steps there"),
    ("enable_pdmux", "SGLang cannot change steps there"),
    ("elastic_ep_backend", "ranks come and go"),
)
UNFIT_VARIABLES = (
    ("SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION", "it drafts without a zero-step branch"),
    ("SGLANG_SCHEDULER_SKIP_ALL_GATHER", "the ranks do not tell each other their batch sizes"),
    ("SGLANG_RUST_SERVER", "decisions would not reach every rank"),
)
OFF = ("", "0", "false", "no", "n", "off")


def unfit_for_dp_attention(server: Mapping[str, Any], environ: Mapping[str, str]) -> list[str]:
    """Why the ranks of data-parallel attention cannot act together under these settings; empty if they can."""
    reasons = [f"{name}: {why}" for name, why in UNFIT_SETTINGS if server.get(name)]
    reasons += [f"{name}: {why}" for name, why in UNFIT_VARIABLES if environ.get(name, "").lower() not in OFF]
    if int(server.get("dwdp_size") or 1) > 1:
        reasons.append("dwdp_size: the ranks do not tell each other their batch sizes")
    if server.get("disaggregation_mode") not in (None, "", "null"):
        reasons.append("disaggregation_mode: not tried with data-parallel attention")
    for name, what in (("pp_size", "pipeline parallel"), ("attn_cp_size", "context parallel"), ("nnodes", "hosts")):
        if int(server.get(name) or 1) > 1:
            reasons.append(f"{name}: not tried with data-parallel attention ({what})")
    return reasons


def topology_reasons(ranks: Ranks, server: Mapping[str, Any], lifted: bool, environ: Mapping[str, str]) -> list[str]:
    """Why the plugin may only report on these ranks; empty if it may act.

    Args:
        ranks: The sizes.
        server: SGLang's settings.
        lifted: Whether the operator wants data-parallel attention (`TRIMTAB_DP_ATTENTION`).
        environ: The environment, for SGLang's own variables.
    """
    reasons = []
    if ranks.pp_size > 1:
        reasons.append(f"pipeline parallel size {ranks.pp_size}: only the last stage drafts; not supported")
    if ranks.cp_size > 1:
        reasons.append(f"context parallel size {ranks.cp_size}: not tried")
    if ranks.nodes > 1:
        reasons.append(
            f"{ranks.nodes} hosts: a rank on another host could not raise an alarm without one more collective a step"
        )
    if ranks.dp_attention and not lifted:
        reasons.append(f"data-parallel attention: set {DP_ATTENTION_VARIABLE}=1 for the server to act there")
    elif ranks.dp_attention:
        reasons += [f"data-parallel attention, {reason}" for reason in unfit_for_dp_attention(server, environ)]
    return reasons


def describe(ranks: Ranks) -> str:
    """The arrangement in a few words, for people."""
    parts = []
    if ranks.dp_attention:
        parts.append(f"data-parallel attention {ranks.dp_size}")
    elif ranks.dp_size > 1:
        parts.append(f"replica {ranks.dp_rank} of {ranks.dp_size}")
    for name, size in (("tensor", ranks.tp_size), ("pipeline", ranks.pp_size), ("context", ranks.cp_size)):
        if size > 1:
            parts.append(f"{name} parallel {size}")
    if ranks.nodes > 1:
        parts.append(f"{ranks.nodes} hosts")
    return ", ".join(parts) or "one rank"
