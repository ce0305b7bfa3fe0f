"""The page that `trimtab show` prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.table import Table

from trimtab.cli.output import age, console, mode_text, number, plain_table, print_lines, print_table
from trimtab.cli.views import BandView, EngineDetail, PinView, ShadowView
from trimtab.policies.contract import Candidate

Line = tuple[str, str]
MIB = 1 << 20
GIB = 1 << 30


def print_page(engine: EngineDetail) -> None:
    """Print identity, abilities, what is in force and why, figures, and everything that went wrong."""
    print_lines(lines(engine))
    if engine.bands:
        console().print(f"\n[bold]last decision of policy {engine.policy}[/]")
        print_table(decision_table(engine.bands))
    if engine.shadow is not None and engine.shadow.bands:
        console().print(f"\n[bold]last decision of policy {engine.shadow.policy}, in shadow[/]")
        print_table(decision_table(engine.shadow.bands))


def lines(engine: EngineDetail) -> Iterator[Line]:
    """The page's upper part, a name and its text a line."""
    yield "engine", f"{engine.engine_id}, {engine.state}, last message {age(engine.last_message_age_s)} ago"
    yield "labels", pairs_text(engine.labels)
    yield from _identity(engine)
    yield "offers", _modes(engine)
    for mode, reason in engine.refused_modes.items():
        yield "not offered", f"{mode}: {reason}"
    if engine.plain is not None:
        yield "native", _native_plain(engine.plain)
    yield "memory", _candidate_cost(engine.candidate_cost)
    yield "in force", _in_force(engine)
    yield "pin", _pin(engine.pin)
    yield "policy", _policy(engine)
    yield "shadow", _shadow(engine.shadow)
    yield "lease", _lease(engine)
    yield "on expiry", engine.on_expiry or "-"
    yield "profile", engine.profile or (f"none: {engine.profile_ignored}" if engine.profile_ignored else "none")
    yield "measured", _measured(engine)
    yield "draft KV", _draft_caches(engine)
    yield "alarms", ", ".join(engine.alarms) or "none"
    if engine.rank_divergence:
        yield "ranks", f"disagree {engine.rank_divergence}"
    if engine.journal_problem:
        yield "journal", f"the controller's journal fails: {engine.journal_problem}"
    yield "dropped", pairs_text(engine.dropped)
    yield "refused", pairs_text(engine.refused)
    yield "hooks", f"{engine.hooks_applied} applied, {len(engine.hooks_not_applied)} not"
    for target, reason in engine.hooks_not_applied.items():
        yield "not hooked", f"{target}: {reason or 'no reason given'}"


def _identity(engine: EngineDetail) -> Iterator[Line]:
    software, topology, spec = engine.software, engine.topology, engine.speculation
    yield "boot", f"{engine.boot_id or '-'}, connected since {engine.connected_at or '-'}"
    yield "model", f"{_text(spec.get('model'))}, {_named(spec, 'draft_model', 'weight_version')}"
    yield "software", _named(software, "plugin_version", "sglang_version", "python_version", "torch_version")
    yield (
        "topology",
        _named(topology, "tp_size", "pp_size", "dp_size", "dp_rank", "dp_attention", "ranks", "nodes", "host"),
    )
    yield "speculation", _named(
        spec, "algorithm", "topk", "adaptive", "initial_steps", "candidate_steps", "rejection_sampling",
        "block_verification",
    )  # fmt: skip
    yield "runs on", _named(spec, "device", "device_name", "dtype", "kv_cache_dtype", "attention_backend")
    yield (
        "limits",
        (
            f"{engine.max_running_requests or '-'} running requests, {engine.kv_capacity_tokens or '-'} KV tokens, "
            f"graphs up to batch {engine.graph_batch_sizes[-1] if engine.graph_batch_sizes else '-'}"
        ),
    )


def _modes(engine: EngineDetail) -> str:
    if not engine.acts:
        return f"nothing, it only observes: {'; '.join(engine.observe_reasons) or 'no reason given'}"
    return ", ".join(map(str, engine.offers)) or "nothing"


def _native_plain(plain: Mapping[str, float]) -> str:
    ring, graph = plain["ring_bytes"] / MIB, plain["graph_bytes"] / MIB
    return (
        f"{ring:,.0f} MiB for {plain['window_tokens']:.0f} unread tokens a request, {graph:,.0f} MiB for its graph, "
        f"together {plain['kv_tokens']:,.0f} KV tokens; {plain['start_s']:.1f} s of the start"
    )


def _draft_caches(engine: EngineDetail) -> str:
    share = "-" if engine.stale_share is None else f"{engine.stale_share:.0%}"
    return f"{share} of the requests have a hole in theirs; {engine.stale_resumes} were drafted for with one"


def _candidate_cost(cost: Mapping[str, Any] | None) -> str:
    if cost is None:
        return "-"
    memory_bytes, kv_tokens = cost["memory_bytes"], cost["kv_tokens"]
    memory = f"{memory_bytes / GIB:.2f} GiB" if memory_bytes else "an unknown part"
    tokens = f" ({kv_tokens} KV tokens)" if kv_tokens else ""
    reserved = _text(cost["reserved_kv_tokens_per_request"])
    return f"the step counts take {memory} of the device{tokens}; each running request keeps {reserved} KV tokens free"


def _in_force(engine: EngineDetail) -> str:
    text = f"{mode_text(engine.mode)}, decided by {engine.decided_by or '-'}"
    return f"{text} ({engine.fuse_reason})" if engine.fuse_reason else text


def _pin(pin: PinView | None) -> str:
    if pin is None:
        return "none"
    until = "until released" if pin.remaining_s is None else f"{age(pin.remaining_s)} left"
    state = "in force" if pin.in_force else "not confirmed by the engine"
    whom = f" for {pin.ordered_for}" if pin.ordered_for else ""
    return f"{pin.what}, {until}, {state}, by {pin.owner or '-'}{whom} at {pin.pinned_at}: {pin.reason or '-'}"


def _policy(engine: EngineDetail) -> str:
    paused = "paused by the pin" if engine.policy_paused else "active"
    return f"{engine.policy or '-'}, {'on trial as a canary, ' if engine.canary else ''}{paused}"


def _shadow(shadow: ShadowView | None) -> str:
    if shadow is None:
        return "none"
    if shadow.unusable:
        return f"{shadow.policy}, cannot decide here: {shadow.unusable}"
    agrees = "-" if shadow.agreement is None else f"{shadow.agreement:.1%}"
    return f"{shadow.policy}, agrees for {agrees} of {shadow.steps:,} steps"


def _lease(engine: EngineDetail) -> str:
    lease = engine.lease
    if lease is None:
        return "none"
    answer = f"refused: {lease.refusal}" if lease.refusal else "accepted" if lease.acknowledged else "no answer yet"
    return f"version {lease.version}, age {age(lease.age_s)}, {answer}"


def _measured(engine: EngineDetail) -> str:
    return (
        f"{number(engine.goodput_tps, 0)} tokens/s, {number(engine.accepted_drafts, 2)} accepted drafts, "
        f"{number(engine.step_ms, 2)} ms a step, batch {number(engine.batch_size, 1)} "
        f"over {engine.measured_rows} steps; {engine.switches} switches; "
        f"{engine.running_requests} running, {engine.waiting_requests} waiting"
    )


def _named(values: Mapping[str, Any], *names: str) -> str:
    return ", ".join(f"{name.removesuffix('_version')} {_text(values.get(name))}" for name in names)


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def pairs_text(values: Mapping[str, object]) -> str:
    """Names and values in a line."""
    return ", ".join(f"{key}={value}" for key, value in values.items()) or "none"


def decision_table(bands: Iterable[BandView]) -> Table:
    """Each band with its mode and why, and below it what the policy expects of every candidate."""
    figures = ("P", "ACCEPTED", "STEP MS", "TOKENS/S", "FROM", "TO")
    table = plain_table("BATCH", "MODE", "WHY", *figures, right=figures)
    for band in bands:
        expected = next((c for c in band.candidates if c.mode == band.mode), None)
        table.add_row(_sizes(band), mode_text(band.mode), band.reason, number(band.probability, 2), *_figures(expected))
        for candidate in band.candidates:
            if candidate.mode != band.mode:
                table.add_row("", f"  [dim]{candidate.mode}[/]", "", "", *_figures(candidate))
    return table


def _sizes(band: BandView) -> str:
    if band.max_batch_size is None:
        return f"{band.min_batch_size}+"
    single = band.max_batch_size == band.min_batch_size
    return str(band.min_batch_size) if single else f"{band.min_batch_size}-{band.max_batch_size}"


def _figures(candidate: Candidate | None) -> tuple[str, ...]:
    if candidate is None:
        return ()
    return (
        number(candidate.accepted_drafts, 2),
        number(candidate.step_ms, 2),
        number(candidate.goodput_tps, 0),
        number(candidate.goodput_low_tps, 0),
        number(candidate.goodput_high_tps, 0),
    )
