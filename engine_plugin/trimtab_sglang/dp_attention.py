"""Data-parallel attention: one step count for all ranks of a group, although each has a batch of its own.

SGLang refuses adaptive speculation there, since its own rule would decide on every rank by that rank's batch. Behind
`TRIMTAB_DP_ATTENTION=1` the refusal is lifted where the ranks can act together, and stays where they cannot. SGLang's
own rule is settled at the same time: it keeps the steps that the server starts with, at every batch size, which is
what SGLang runs where it refuses. So the ranks agree under it too, one without this plugin included.

The largest batch of all ranks reads the table. SGLang exchanges the sizes before every launch; idle ranks take part.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab_sglang.facts import sglang_version
from trimtab_sglang.topology import UNFIT_SETTINGS, unfit_for_dp_attention

if TYPE_CHECKING:
    from trimtab_sglang.plugin import Plugin

logger = logging.getLogger("trimtab")

REFUSAL = "sglang.srt.speculative.adaptive_spec_params.adaptive_unsupported_reason"
EXCHANGE = "sglang.srt.managers.scheduler_components.dp_attn.MLPSyncBatchInfo.all_gather"
# Of SGLang's reason, the same words from 0.5.16 to 0.5.23.
SGLANGS_WORDS = "not synchronized across DP ranks"
LOOKED_AT = (
    *(name for name, _ in UNFIT_SETTINGS), "dwdp_size", "disaggregation_mode", "pp_size", "attn_cp_size", "nnodes",
    "device", "disable_cuda_graph", "cuda_graph_config",
)  # fmt: skip
# With these the capture in the target's scope (`target_scope.py`) was seen to work on GPUs.
GRAPHS_TRIED = ("0.5.16",)
# More verify steps than any server lives: SGLang's rule stays where it begins.
NEVER_WARM = 1 << 60


def lift_refusal(plugin: Plugin) -> Any:
    """The hook around SGLang's refusal. Runs in the server's first process, while settings are resolved."""

    def hook(original: Any, server_args: Any, *args: Any, **kwargs: Any) -> Any:
        reason = original(server_args, *args, **kwargs)
        if not isinstance(reason, str) or SGLANGS_WORDS not in reason:
            return reason
        try:
            settings = _resolved(server_args)
            unfit = unfit_for_dp_attention(settings, os.environ) + untried_graphs(settings, sglang_version())
            if unfit:
                logger.warning("trimtab leaves SGLang's refusal in place: %s", "; ".join(unfit))
                return reason
            _set(server_args, speculative_adaptive_config=_settled(settings.get("speculative_adaptive_config")))
            logger.info("trimtab lets adaptive speculation run under data-parallel attention")
            return None
        except Exception as error:
            logger.exception("trimtab leaves SGLang's refusal in place")
            return f"{reason} ({error})"

    return hook


def after_exchange(plugin: Plugin) -> Any:
    """Keep the largest batch of all ranks, once they have told each other."""
    fuse = plugin.fuse

    def hook(result: Any, info: Any, *args: Any, **kwargs: Any) -> None:
        try:
            if plugin.team is not None:
                plugin.team.batch_size = max(info.global_num_tokens)
        except Exception as error:  # noqa: BLE001
            fuse.blow("reading the batch sizes of all ranks", error)

    return hook


def untried_graphs(settings: Mapping[str, Any], version: str) -> list[str]:
    """Why CUDA graphs stand in the way; empty if they do not, or none are captured for decoding."""
    config = settings.get("cuda_graph_config")
    decode = config.get("decode") if isinstance(config, Mapping) else getattr(config, "decode", None)
    backend = decode.get("backend") if isinstance(decode, Mapping) else getattr(decode, "backend", None)
    without = settings.get("device") == "cpu" or settings.get("disable_cuda_graph") or backend == "disabled"
    if without or version in GRAPHS_TRIED:
        return []
    return [
        f"CUDA graphs: SGLang {version} captures those of further step counts among the draft's ranks, and our way "
        f"around that was tried with {', '.join(GRAPHS_TRIED)} only; start with --disable-cuda-graph to act"
    ]


def settled(config: Mapping[str, Any]) -> dict[str, Any]:
    """An adaptive table with the same step counts, by which SGLang's own rule never moves."""
    tables = [entry for key, entry in config.items() if key.isdigit()]
    steps = sorted({step for entry in tables for step in entry["candidate_steps"]})
    return {"warmup_batches": NEVER_WARM, "1": {"candidate_steps": steps}}


def _settled(path: str | None) -> str:
    """File with the settled table of this one (None: SGLang's own). It goes with this process."""
    config: Mapping[str, Any]
    if path is None:
        from sglang.srt.speculative import adaptive_spec_params

        config = adaptive_spec_params.DEFAULT_ADAPTIVE_CONFIG
    else:
        config = json.loads(Path(path).read_text())
    descriptor, made = tempfile.mkstemp(prefix="trimtab-adaptive-", suffix=".json")
    with os.fdopen(descriptor, "w") as file:
        json.dump(settled(config), file)
    atexit.register(_remove, made, os.getpid())
    return made


def _remove(path: str, pid: int) -> None:
    if os.getpid() == pid:
        Path(path).unlink(missing_ok=True)


def _resolved(server_args: Any) -> dict[str, Any]:
    """The settings that matter here, as far as SGLang has resolved them."""
    from sglang.srt.arg_groups.overrides import resolved_view

    view = resolved_view(server_args)
    names = (*LOOKED_AT, "speculative_adaptive_config")
    return {name: getattr(view, name, None) for name in names}


def _set(server_args: Any, **fields: Any) -> None:
    """Decide settings while SGLang resolves them: since 0.5.20 it wants them declared."""
    try:
        from sglang.srt.arg_groups.overrides import declare_resolution
    except ImportError:
        for name, value in fields.items():
            setattr(server_args, name, value)
    else:
        declare_resolution(server_args, "trimtab", **fields)
