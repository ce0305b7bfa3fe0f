"""What engines say: Hello, Report and Ack as values."""

from __future__ import annotations

from collections import Counter

from trimtab.domain import CostKey, EngineInfo, EngineKey, InForce, Pin, RankStep, Report, Source
from trimtab.errors import WireError
from trimtab.session.events import Answered
from trimtab.wire import bounds
from trimtab.wire.modes import mode_from_wire, range_from_wire
from trimtab.wire.rows import columns_to_rows
from trimtabpb.v1 import control_pb2 as pb

SOURCES: dict[pb.InForce.Source.ValueType, Source] = {
    pb.InForce.SOURCE_STOCK: Source.STOCK,
    pb.InForce.SOURCE_LEASE: Source.LEASE,
    pb.InForce.SOURCE_PIN: Source.PIN,
    pb.InForce.SOURCE_FUSE: Source.FUSE,
}
REFUSALS: dict[int, str] = {number: name.removeprefix("REFUSAL_").lower() for name, number in pb.Refusal.items()}
MAX_PIN_REMAINING_S = 366 * 86_400.0
SHORT_TEXTS = {
    "software": ("plugin_version", "sglang_version", "python_version", "torch_version", "plugin_digest"),
    "topology": ("host", "summary"),
    "speculation": (
        "algorithm", "attention_backend", "device", "device_name", "dtype", "kv_cache_dtype", "weight_version",
    ),
}  # fmt: skip
PATHS = ("model", "draft_model")
RANKS = ("tp_size", "pp_size", "dp_size", "dp_rank", "nodes", "ranks")


def read_hello(message: pb.Hello) -> tuple[EngineInfo, pb.Hello]:
    """What sessions need to know of an engine, and its Hello fit to be shown (texts for people cut).

    Raises:
        WireError: A field that is missing or out of range.
    """
    _check_texts(message)
    _check_numbers(message)
    shown = pb.Hello()
    shown.CopyFrom(message)
    _clip_texts(shown)
    pin = _read_pin(shown.pin) if message.HasField("pin") else None
    info = EngineInfo(
        key=EngineKey(_engine_id(message.engine_id), message.topology.dp_rank),
        boot_id=bounds.name("hello.boot_id", message.boot_id),
        modes=tuple(dict.fromkeys(mode_from_wire(f"hello.modes[{i}]", mode) for i, mode in enumerate(message.modes))),
        graph_batch_sizes=bounds.ascending("hello.graph_batch_sizes", message.graph_batch_sizes, bounds.MAX_REQUESTS),
        max_running_requests=message.max_running_requests,
        acts=message.acts,
        observe_reasons=tuple(shown.observe_reasons),
        labels=bounds.texts("hello.labels", message.labels),
        block_verification=message.speculation.block_verification,
        rejection_sampling=message.speculation.rejection_sampling,
        initial_steps=message.speculation.initial_steps,
        in_force=_read_in_force("hello.in_force", message.in_force) if message.HasField("in_force") else InForce(),
        pin=pin[0] if pin else None,
        pin_remaining_s=pin[1] if pin else None,
        last_lease_version=bounds.whole("hello.last_lease_version", message.last_lease_version),
        cost_key=cost_key_of(shown),
        kv_capacity_tokens=message.kv_capacity_tokens,
        resets=bounds.whole("hello.resets", message.resets),
    )
    return info, shown


def cost_key_of(hello: pb.Hello) -> CostKey:
    """What the engine's step times depend on, as its Hello says."""
    said = hello.speculation
    return CostKey(
        model=said.model,
        weight_version=said.weight_version,
        draft_model=said.draft_model,
        device_name=said.device_name,
        attention_backend=said.attention_backend,
        dtype=said.dtype,
        kv_cache_dtype=said.kv_cache_dtype,
        tp_size=hello.topology.tp_size,
        sglang_version=hello.software.sglang_version,
    )


def read_report(message: pb.Report) -> tuple[Report, Counter[str]]:
    """The report, and what was left out of its rows by reason.

    Raises:
        WireError: A field other than the rows that is out of range.
        WireLimitError: More rows than a report may have.
    """
    rows, refused = columns_to_rows(message.rows)
    age_ns = bounds.whole("report.last_step_age_ns", message.last_step_age_ns)
    report = Report(
        seq=bounds.whole("report.seq", message.seq, low=1),
        now_ns=bounds.whole("report.now_ns", message.now_ns),
        rows=rows,
        in_force=_read_in_force("report.in_force", message.in_force) if message.HasField("in_force") else InForce(),
        decode_steps=bounds.whole("report.decode_steps", message.decode_steps),
        switches=bounds.whole("report.switches", message.switches),
        dropped=bounds.counters("report.dropped", message.dropped),
        last_step_age_ns=age_ns if message.HasField("last_step_age_ns") else None,
        waiting_requests=bounds.whole("report.waiting_requests", message.waiting_requests, bounds.MAX_REQUESTS),
        running_requests=bounds.whole("report.running_requests", message.running_requests, bounds.MAX_REQUESTS),
        ranks=tuple(
            _read_rank(f"report.ranks[{i}]", rank)
            for i, rank in enumerate(bounds.at_most("report.ranks", message.ranks, bounds.MAX_TEAM))
        ),
        stale_resumes=bounds.whole("report.stale_resumes", message.stale_resumes),
        resets=bounds.whole("report.resets", message.resets),
        reset_reason=bounds.clipped(message.reset_reason),
        weight_version=bounds.text("report.weight_version", message.weight_version),
    )
    return report, refused


def read_ack(message: pb.Ack) -> Answered:
    """The answer to a lease; `WireError` if its refusal is not a known one."""
    refusal = REFUSALS.get(message.refusal)
    if refusal is None:
        raise WireError("ack.refusal", f"{message.refusal} is not a known refusal")
    return Answered(
        nonce=bounds.whole("ack.nonce", message.nonce),
        version=bounds.whole("ack.version", message.version),
        accepted=message.accepted,
        refusal="" if message.accepted else refusal,
        detail=bounds.clipped(message.detail),
    )


def _read_rank(field: str, message: pb.RankStep) -> RankStep:
    return RankStep(
        rank=bounds.whole(f"{field}.rank", message.rank, bounds.MAX_RANKS),
        step=bounds.whole(f"{field}.step", message.step),
        mode=mode_from_wire(f"{field}.mode", message.mode),
        batch_size=bounds.whole(f"{field}.batch_size", message.batch_size, bounds.MAX_REQUESTS),
        digest=message.digest,
    )


def _engine_id(value: str) -> str:
    """An id that cannot be taken for the data-parallel replica of another engine (`ID/RANK`)."""
    bounds.name("hello.engine_id", value)
    _, slash, rank = value.rpartition("/")
    if slash and rank.isdigit():
        raise WireError("hello.engine_id", f"{value!r} must not end in /NUMBER, which means a data-parallel rank")
    if value != value.strip():
        raise WireError("hello.engine_id", f"{value!r} begins or ends with blanks")
    return value


def source_of(field: str, message: pb.InForce) -> Source:
    """Who decides; `WireError` if it is nobody known."""
    source = SOURCES.get(message.source)
    if source is None:
        raise WireError(f"{field}.source", f"{message.source} is not a known source")
    return Source.EXPIRY if source is Source.STOCK and message.after_expiry else source


def _read_in_force(field: str, message: pb.InForce) -> InForce:
    return InForce(
        source=source_of(field, message),
        mode=mode_from_wire(f"{field}.mode", message.mode) if message.HasField("mode") else None,
        lease_version=bounds.whole(f"{field}.lease_version", message.lease_version),
        pin_id=bounds.text(f"{field}.pin_id", message.pin_id),
        fuse_reason=bounds.clipped(message.fuse_reason),
    )


def _read_pin(message: pb.Pin) -> tuple[Pin, float | None]:
    mode = mode_from_wire("hello.pin.mode", message.mode)
    allowed = range_from_wire("hello.pin.range", message.range) if message.HasField("range") else None
    if allowed is not None and mode not in allowed:
        raise WireError("hello.pin.range", f"is {allowed}, but the pin's mode is {mode}")
    pin = Pin(
        id=bounds.name("hello.pin.id", message.id),
        mode=mode,
        reason=message.reason,
        owner=message.owner,
        range=allowed,
    )
    if not message.HasField("remaining"):
        return pin, None
    return pin, bounds.duration_s("hello.pin.remaining", message.remaining, 0, MAX_PIN_REMAINING_S)


def _check_texts(message: pb.Hello) -> None:
    for part, names in SHORT_TEXTS.items():
        for name in names:
            bounds.text(f"hello.{part}.{name}", getattr(getattr(message, part), name))
    for name in PATHS:
        bounds.text(f"hello.speculation.{name}", getattr(message.speculation, name), bounds.MAX_PATH)


def _check_numbers(message: pb.Hello) -> None:
    bounds.whole("hello.protocol_version", message.protocol_version, low=1)
    bounds.whole("hello.max_running_requests", message.max_running_requests, bounds.MAX_REQUESTS)
    bounds.whole("hello.kv_capacity_tokens", message.kv_capacity_tokens)
    for name in RANKS:
        bounds.whole(f"hello.topology.{name}", getattr(message.topology, name), bounds.MAX_RANKS)
    bounds.whole("hello.speculation.initial_steps", message.speculation.initial_steps, bounds.MAX_STEPS)
    bounds.at_most("hello.speculation.candidate_steps", message.speculation.candidate_steps, bounds.MAX_MODES)
    bounds.at_most("hello.modes", message.modes, bounds.MAX_MODES)
    bounds.at_most("hello.graph_batch_sizes", message.graph_batch_sizes, bounds.MAX_GRAPH_SIZES)
    bounds.at_most("hello.observe_reasons", message.observe_reasons, bounds.MAX_LABELS)
    bounds.at_most("hello.hooks", message.hooks, bounds.MAX_HOOKS)
    bounds.at_most("hello.plain.refused", message.plain.refused, bounds.MAX_MODES)


def _clip_texts(message: pb.Hello) -> None:
    """Cut what is only for people to read: a long explanation is no reason to refuse an engine."""
    message.on_expiry = bounds.clipped(message.on_expiry)
    message.observe_reasons[:] = [bounds.clipped(reason) for reason in message.observe_reasons]
    for hook in message.hooks:
        hook.target, hook.reason = bounds.clipped(hook.target), bounds.clipped(hook.reason)
    for refused in message.plain.refused:
        refused.reason = bounds.clipped(refused.reason)
    if message.HasField("pin"):
        message.pin.reason, message.pin.owner = bounds.clipped(message.pin.reason), bounds.clipped(message.pin.owner)
    if message.HasField("in_force"):
        message.in_force.fuse_reason = bounds.clipped(message.in_force.fuse_reason)
