"""The plugin's side of the wire: facts and rows into messages, leases out of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sized
from dataclasses import asdict

from google.protobuf.duration_pb2 import Duration

from trimtab_sglang.facts import EngineFacts, HookStatus, python_version, torch_version
from trimtab_sglang.lease import (
    MAX_ALTERNATIVES,
    MAX_TABLE_ENTRIES,
    Lease,
    LeaseError,
    Mode,
    ModeKind,
    Pin,
    StepRange,
    TableEntry,
    check_lease,
)
from trimtab_sglang.plain_offer import PlainOffer
from trimtab_sglang.rows import ABSENT, Row
from trimtab_sglang.settings import MAX_TEXT, __version__
from trimtab_sglang.shared_words import RankStep
from trimtab_sglang.topology import describe
from trimtabpb.v1 import control_pb2 as pb

PROTOCOL_VERSION = 1
MIN_TTL_S, MAX_TTL_S = 0.1, 600.0
MAX_PIN_S = 366 * 86_400.0

KIND_TO_WIRE: Mapping[ModeKind, pb.Mode.Kind.ValueType] = {
    ModeKind.SPECULATE: pb.Mode.KIND_SPECULATE,
    ModeKind.PLAIN_WARM: pb.Mode.KIND_PLAIN_WARM,
    ModeKind.PLAIN_COLD: pb.Mode.KIND_PLAIN_COLD,
    ModeKind.PLAIN_NATIVE: pb.Mode.KIND_PLAIN_NATIVE,
}
KIND_FROM_WIRE = {wire: kind for kind, wire in KIND_TO_WIRE.items()}


def mode_to_wire(mode: Mode) -> pb.Mode:
    """A mode as a message."""
    return pb.Mode(kind=KIND_TO_WIRE[mode.kind], steps=mode.steps)


def mode_from_wire(message: pb.Mode, field: str) -> Mode:
    """The mode of a message; `LeaseError` names `field` if it is none."""
    kind = KIND_FROM_WIRE.get(message.kind)
    if kind is None:
        raise LeaseError(field, f"has the unknown mode kind {message.kind}")
    try:
        return Mode(kind, message.steps)
    except ValueError as error:
        raise LeaseError(field, str(error)) from error


def duration(seconds: float) -> Duration:
    """A length of time as a message."""
    message = Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def seconds(message: Duration) -> float:
    """A length of time in seconds."""
    return message.seconds + message.nanos / 1e9


def lease_from_wire(message: pb.Lease, life_steps: int) -> tuple[Lease, float, float | None]:
    """The lease of a message, its time to live and its pin's remaining time (None: until released), in s.

    Raises:
        LeaseError: It is malformed; the error names the field.
    """
    ttl_s = seconds(message.ttl)
    if not MIN_TTL_S <= ttl_s <= MAX_TTL_S:
        raise LeaseError("ttl", f"must be {MIN_TTL_S} to {MAX_TTL_S} s, is {ttl_s}")
    # Before anything is made of them: it would keep the scheduler waiting for its turn.
    _at_most(message.table, MAX_TABLE_ENTRIES, "table", "entries")
    for entry in message.table:
        _at_most(entry.alternatives, MAX_ALTERNATIVES, f"table[{entry.min_batch_size}]", "alternatives")
    pin = _pin_from_wire(message.pin) if message.HasField("pin") else None
    remaining_s = seconds(message.pin.remaining) if pin and message.pin.HasField("remaining") else None
    if remaining_s is not None and not 0 <= remaining_s <= MAX_PIN_S:
        raise LeaseError("pin.remaining", f"must be 0 to {MAX_PIN_S:.0f} s, is {remaining_s}")
    lease = Lease(
        version=message.version,
        table=tuple(_entry_from_wire(entry) for entry in message.table),
        smoothing=_finite(message.smoothing, "smoothing"),
        hysteresis=_finite(message.hysteresis, "hysteresis"),
        min_dwell_steps=message.min_dwell_steps,
        exploration_seed=message.exploration.seed,
        exploration_dwell_steps=message.exploration.dwell_steps,
        life_steps=life_steps,
        pin=pin,
        reason=message.reason[:MAX_TEXT],
    )
    check_lease(lease)
    return lease, ttl_s, remaining_s


def _entry_from_wire(message: pb.TableEntry) -> TableEntry:
    field = f"table[{message.min_batch_size}]"
    return TableEntry(
        min_batch_size=message.min_batch_size,
        mode=mode_from_wire(message.mode, field),
        probability=_finite(message.probability, field),
        alternatives=tuple(
            (mode_from_wire(other.mode, field), _finite(other.probability, field)) for other in message.alternatives
        ),
    )


def _at_most(values: Sized, most: int, field: str, what: str) -> None:
    if len(values) > most:
        raise LeaseError(field, f"has {len(values)} {what}, at most {most}")


def _pin_from_wire(message: pb.Pin) -> Pin:
    if not message.id or len(message.id) > MAX_TEXT:
        raise LeaseError("pin.id", f"must have 1 to {MAX_TEXT} characters")
    mode = mode_from_wire(message.mode, "pin.mode")
    allowed = StepRange(message.range.min_steps, message.range.max_steps) if message.HasField("range") else None
    return Pin(message.id, mode, message.reason[:MAX_TEXT], message.owner[:MAX_TEXT], allowed)


def pin_to_wire(pin: Pin, remaining_s: float | None) -> pb.Pin:
    """A pin as a message, with the time that it has left (None: until released)."""
    message = pb.Pin(id=pin.id, mode=mode_to_wire(pin.mode), reason=pin.reason, owner=pin.owner)
    if pin.range is not None:
        message.range.CopyFrom(pb.StepRange(min_steps=pin.range.min_steps, max_steps=pin.range.max_steps))
    if remaining_s is not None:
        message.remaining.CopyFrom(duration(remaining_s))
    return message


def _finite(value: float, field: str) -> float:
    if not math.isfinite(value):
        raise LeaseError(field, f"is {value}")
    return value


def in_force(
    source: pb.InForce.Source.ValueType,
    mode: Mode | None,
    version: int = 0,
    pin_id: str = "",
    fuse_reason: str = "",
    after_expiry: bool = False,
) -> pb.InForce:
    """What runs now, as a message."""
    message = pb.InForce(
        source=source,
        lease_version=version,
        pin_id=pin_id,
        fuse_reason=fuse_reason[:MAX_TEXT],
        after_expiry=after_expiry,
    )
    if mode is not None:
        message.mode.CopyFrom(mode_to_wire(mode))
    return message


def hello(
    facts: EngineFacts,
    engine_id: str,
    labels: Mapping[str, str],
    hooks: Iterable[HookStatus],
    observe_reasons: list[str],
    digest: str,
) -> pb.Hello:
    """Hello without the parts that change while the engine runs."""
    acts = not observe_reasons
    ranks = facts.ranks
    return pb.Hello(
        protocol_version=PROTOCOL_VERSION,
        engine_id=engine_id,
        boot_id=facts.boot_id,
        labels=labels,
        software=pb.Software(
            plugin_version=__version__,
            sglang_version=facts.sglang_version,
            python_version=python_version(),
            torch_version=torch_version(),
            plugin_digest=digest,
        ),
        topology=pb.Topology(
            tp_size=ranks.tp_size,
            pp_size=ranks.pp_size,
            dp_size=ranks.dp_size,
            dp_rank=ranks.dp_rank,
            dp_attention=ranks.dp_attention,
            host=engine_id.partition(":")[0],
            nodes=ranks.nodes,
            summary=describe(ranks),
        ),
        speculation=_speculation(facts),
        modes=[mode_to_wire(mode) for mode in facts.modes] if acts else [],
        graph_batch_sizes=facts.graph_batch_sizes,
        max_running_requests=facts.max_running_requests,
        kv_capacity_tokens=facts.kv_capacity_tokens,
        acts=acts,
        observe_reasons=[reason[:MAX_TEXT] for reason in observe_reasons],
        hooks=[pb.Hook(target=h.target, applied=h.applied, reason=h.reason[:MAX_TEXT]) for h in hooks],
        plain=_plain(facts.plain),
        candidate_cost=pb.CandidateCost(**asdict(facts.candidate_cost)) if facts.candidate_steps else None,
    )


def _plain(plain: PlainOffer) -> pb.Plain:
    message = pb.Plain(
        refused=[pb.RefusedMode(mode=mode_to_wire(mode), reason=why[:MAX_TEXT]) for mode, why in plain.refused.items()]
    )
    if plain.memory is not None:
        memory = plain.memory
        message.window_tokens, message.ring_bytes = memory.window_tokens, memory.ring_bytes
        message.graph_bytes, message.kv_tokens = memory.graph_bytes, memory.kv_tokens
        message.start_time.CopyFrom(duration(memory.start_seconds))
    return message


def _speculation(facts: EngineFacts) -> pb.Speculation:
    return pb.Speculation(
        algorithm=facts.text("speculative_algorithm"),
        topk=int(facts.number("speculative_eagle_topk")),
        adaptive=facts.adaptive,
        initial_steps=int(facts.number("speculative_num_steps")),
        candidate_steps=facts.candidate_steps,
        rejection_sampling=bool(facts.server.get("speculative_use_rejection_sampling")),
        block_verification=bool(facts.server.get("speculative_use_block_verification")),
        accept_threshold_single=facts.number("speculative_accept_threshold_single", 1.0),
        accept_threshold_acc=facts.number("speculative_accept_threshold_acc", 1.0),
        model=facts.text("model_path"),
        draft_model=facts.text("speculative_draft_model_path"),
        attention_backend=facts.text("attention_backend"),
        device=facts.text("device"),
        dtype=facts.text("dtype"),
        kv_cache_dtype=facts.text("kv_cache_dtype"),
        weight_version=facts.text("weight_version"),
        device_name=facts.device_name,
    )


def rank_step(step: RankStep) -> pb.RankStep:
    """What a rank chose, as a message."""
    return pb.RankStep(
        rank=step.rank, step=step.step, mode=mode_to_wire(step.mode), batch_size=step.batch_size, digest=step.digest
    )


def append_row(columns: pb.StepRows, row: Row, dp_rank: int = 0) -> None:
    """Add one row to the columns. Columns that this plugin never fills stay empty: absent for every row."""
    columns.launch_id.append(row.launch_id)
    columns.step.append(row.step)
    columns.result_ns.append(row.result_ns)
    columns.mode_kind.append(KIND_TO_WIRE[row.mode.kind])
    columns.mode_steps.append(row.mode.steps)
    columns.lease_version.append(row.lease_version)
    columns.table_entry.append(row.table_entry)
    columns.batch_size.append(row.batch_size)
    columns.padded_batch_size.append(row.padded_batch_size)
    columns.fresh.depths.append(len(row.offered))
    columns.fresh.offered.extend(row.offered)
    columns.fresh.accepted.extend(row.accepted)
    columns.fresh_requests.append(row.fresh_requests)
    columns.stale.depths.append(len(row.stale_offered))
    columns.stale.offered.extend(row.stale_offered)
    columns.stale.accepted.extend(row.stale_accepted)
    columns.stale_requests.append(row.stale_requests)
    columns.emitted_tokens.append(row.emitted_tokens)
    columns.step_ns.append(row.step_ns)
    columns.wall_gap_ns.append(row.wall_gap_ns)
    columns.prefill_tokens.append(row.prefill_tokens)
    columns.context_tokens_sum.append(row.context_tokens_sum)
    columns.context_tokens_max.append(row.context_tokens_max)
    columns.running_requests.append(row.batch_size)
    columns.retracted_requests.append(row.retracted_requests)
    columns.accepted_worst_decile.append(row.accepted_worst_decile)
    columns.catch_up_ns.append(row.catch_up_ns)
    columns.flags.append(row.flags)
    columns.missed_tokens.append(row.missed_tokens)
    columns.caught_up_tokens.append(row.caught_up_tokens)
    if row.global_batch_size != ABSENT:
        columns.global_batch_size.append(row.global_batch_size)
    if dp_rank:
        columns.dp_rank.append(dp_rank)


def append_samples(columns: pb.StepRows, samples: Mapping[str, int]) -> None:
    """Values that are sampled once a report: they go to its newest row, the others have none."""
    rows = len(columns.step)
    for name, value in samples.items():
        if rows:
            getattr(columns, name).extend([ABSENT] * (rows - 1) + [value])


class NoStateError(LeaseError):
    """A lease asks for a mode that this engine did not build."""
