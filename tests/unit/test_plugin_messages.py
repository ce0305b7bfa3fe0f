"""The plugin's side of the wire: leases in, rows out, read back by the controller's own translator."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from support.hooked_engine import EmbeddedEngine, one_mode_lease
from support.raw_rows import Lengths, launch, raw_row, rows_of
from trimtab.domain import DepthCounts, StepFlag
from trimtab.session.events import SendLease
from trimtab.wire import columns_to_rows, lease_message, read_hello
from trimtab_sglang import messages
from trimtab_sglang.host import HOOK_TABLE
from trimtab_sglang.lease import (
    PLAIN_NATIVE,
    PLAIN_WARM,
    Choice,
    Lease,
    LeaseError,
    Pin,
    TableEntry,
    modes_of,
    speculate,
)
from trimtabpb.v1 import control_pb2 as pb

LEASE = Lease(
    version=9,
    table=(TableEntry(1, speculate(5), 0.75, ((PLAIN_WARM, 0.25),)), TableEntry(17, PLAIN_WARM)),
    smoothing=0.5,
    hysteresis=0.125,
    min_dwell_steps=8,
    exploration_seed=2**64 - 1,
    exploration_dwell_steps=16,
    life_steps=400,
    pin=Pin("p1", PLAIN_NATIVE, "latency", "kim"),
    reason="goodput: exploit",
)


def sent(lease: Lease = LEASE, ttl_s: float = 2.0, pin_remaining_s: float | None = None) -> pb.Lease:
    """The message that the controller makes of a lease."""
    return lease_message(SendLease(lease, 1, ttl_s, pin_remaining_s)).lease


@pytest.mark.parametrize("remaining_s", [None, 0.0, 599.5])
def test_a_lease_arrives_as_the_controller_meant_it(remaining_s: float | None) -> None:
    assert messages.lease_from_wire(sent(pin_remaining_s=remaining_s), 400) == (LEASE, 2.0, remaining_s)


def changed(**fields: Any) -> pb.Lease:
    message = sent()
    for name, value in fields.items():
        if isinstance(value, list):
            message.ClearField(name)  # type: ignore[arg-type]
            getattr(message, name).extend(value)
        elif isinstance(value, int | float):
            setattr(message, name, value)
        else:
            getattr(message, name).CopyFrom(value)
    return message


def entry(edge: int = 1, probability: float = 1, kind: Any = pb.Mode.KIND_SPECULATE, steps: int = 3) -> pb.TableEntry:
    return pb.TableEntry(min_batch_size=edge, mode=pb.Mode(kind=kind, steps=steps), probability=probability)


WARM = pb.Mode(kind=pb.Mode.KIND_PLAIN_WARM)
MALFORMED: list[tuple[str, pb.Lease]] = [
    ("ttl", changed(ttl=Duration())),
    ("ttl", changed(ttl=Duration(nanos=99_000_000))),
    ("ttl", changed(ttl=Duration(seconds=601))),
    ("ttl", changed(ttl=Duration(seconds=-1))),
    ("version", changed(version=0)),
    ("smoothing", changed(smoothing=0.0)),
    ("smoothing", changed(smoothing=nan)),
    ("hysteresis", changed(hysteresis=inf)),
    ("hysteresis", changed(hysteresis=1.5)),
    ("min_dwell_steps", changed(min_dwell_steps=2_000_000)),
    ("exploration_dwell_steps", changed(exploration=pb.Exploration(dwell_steps=2_000_000))),
    ("table", changed(table=[entry(2)])),
    ("table", changed(table=[entry(1), entry(1)])),
    ("table[1]", changed(table=[entry(kind=pb.Mode.KIND_UNSPECIFIED)])),
    ("table[1]", changed(table=[entry(kind=99)])),
    ("table[1]", changed(table=[entry(steps=0)])),
    ("table[1]", changed(table=[entry(kind=pb.Mode.KIND_PLAIN_COLD, steps=2)])),
    ("table[1]", changed(table=[entry(probability=0.5)])),
    ("table[1]", changed(table=[entry(probability=nan)])),
    ("pin.id", changed(pin=pb.Pin(mode=WARM))),
    ("pin.id", changed(pin=pb.Pin(id="x" * 257, mode=WARM))),
    ("pin.mode", changed(pin=pb.Pin(id="p"))),
]


@pytest.mark.parametrize(("field", "message"), MALFORMED)
def test_a_malformed_lease_names_its_field(field: str, message: pb.Lease) -> None:
    with pytest.raises(LeaseError) as caught:
        messages.lease_from_wire(message, 400)
    assert caught.value.field == field


def test_texts_for_people_are_cut() -> None:
    lease = one_mode_lease(speculate(3), pin=Pin("p", PLAIN_WARM, "r" * 300, "o" * 300), reason="w" * 300)
    found, _, _ = messages.lease_from_wire(sent(lease), 1)
    assert found.pin is not None
    assert [len(text) for text in (found.reason, found.pin.reason, found.pin.owner)] == [256] * 3


# -- rows ----------------------------------------------------------------------------------------


def test_rows_arrive_as_the_plugin_made_them() -> None:
    made = rows_of(
        raw_row(launch(1, gap=True, prefill_tokens=50), [3, 1], result_ms=10),
        raw_row(
            launch(2, Choice(speculate(5), 7, 1, explored=True)), [5, 0], result_ms=18, seq_lens=Lengths([10, 20]),
            draft_tokens=6,
        ),
        raw_row(launch(3, Choice(PLAIN_WARM)), [0], result_ms=24, graph=False),
    )  # fmt: skip
    columns = pb.StepRows()
    for row in made:
        messages.append_row(columns, row)
    messages.append_samples(columns, {"kv_used_tokens": 900, "greedy_requests": 2, "waiting_requests": 7})
    rows, refused = columns_to_rows(columns)

    assert not refused
    assert [r.mode for r in rows] == [speculate(3), speculate(5), PLAIN_WARM]
    assert [(r.lease_version, r.table_entry) for r in rows] == [(0, None), (7, 1), (0, None)]
    assert [(r.step_ns, r.wall_gap_ns) for r in rows] == [(None, None), (8_000_000,) * 2, (6_000_000,) * 2]
    assert [r.fresh for r in rows] == [
        DepthCounts((2, 2, 1), (2, 1, 1)), DepthCounts((2, 1, 1, 1, 1), (1, 1, 1, 1, 1)), DepthCounts(),
    ]  # fmt: skip
    assert [(r.prefill_tokens, r.waiting_requests, r.running_requests) for r in rows] == [
        (50, None, 2), (0, None, 2), (0, 7, 1),
    ]  # fmt: skip
    assert [(r.context_tokens_sum, r.context_tokens_max) for r in rows] == [(None, None), (30, 20), (None, None)]
    assert [r.accepted_worst_decile for r in rows] == [1, 0, None]
    assert [(r.kv_used_tokens, r.greedy_requests) for r in rows] == [(None, None), (None, None), (900, 2)]
    assert [r.flags & ~StepFlag.WARM_UP for r in rows] == [
        StepFlag.GRAPH | StepFlag.GAP, StepFlag.GRAPH | StepFlag.SWITCHED | StepFlag.EXPLORED, StepFlag.SWITCHED,
    ]  # fmt: skip
    assert {r.dp_rank for r in rows} == {0}


def test_without_rows_there_are_no_samples() -> None:
    columns = pb.StepRows()
    messages.append_samples(columns, {"kv_used_tokens": 900})
    assert columns == pb.StepRows()


def test_the_replica_goes_with_its_rows() -> None:
    columns = pb.StepRows()
    messages.append_row(columns, rows_of(raw_row(launch(), [1]))[0], dp_rank=3)
    assert columns_to_rows(columns)[0][0].dp_rank == 3


# -- hello ---------------------------------------------------------------------------------------


def hello(observe_reasons: list[str]) -> pb.Hello:
    plugin = EmbeddedEngine().plugin
    assert plugin.facts is not None
    made = messages.hello(plugin.facts, "host-1:30000", {"a": "1"}, plugin.hooks, observe_reasons, plugin.digest)
    made.in_force.CopyFrom(messages.in_force(pb.InForce.SOURCE_STOCK, None))
    return made


def test_a_hello_says_what_the_engine_is_and_offers() -> None:
    made = hello([])
    info, _ = read_hello(made)
    assert (info.key.engine_id, info.modes, info.acts) == ("host-1:30000", modes_of([0, 1, 3, 5, 7]), True)
    assert (info.graph_batch_sizes, info.max_running_requests) == ((1, 2, 4, 8, 16, 32, 64), 256)
    assert (info.initial_steps, info.labels) == (3, {"a": "1"})
    assert (made.speculation.algorithm, made.speculation.adaptive) == ("EAGLE3", True)
    assert list(made.speculation.candidate_steps) == [0, 1, 3, 5, 7]
    assert (made.software.sglang_version, len(made.software.plugin_digest)) == ("embedded", 16)
    assert made.topology.host == "host-1"
    assert len(made.hooks) == len(HOOK_TABLE) + 1
    assert [refused.mode.kind for refused in made.plain.refused] == [pb.Mode.KIND_PLAIN_NATIVE, pb.Mode.KIND_PLAIN_COLD]


def test_a_hello_of_an_observing_engine_offers_nothing_and_says_why() -> None:
    info, _ = read_hello(hello(["tensor parallel size 2", "x" * 300]))
    assert (info.acts, info.modes) == (False, ())
    assert info.observe_reasons[0] == "tensor parallel size 2"
    assert len(info.observe_reasons[1]) == 256


def test_what_is_in_force() -> None:
    found = messages.in_force(pb.InForce.SOURCE_FUSE, speculate(3), 4, "p", "x" * 300)
    assert (found.mode, found.lease_version, found.pin_id) == (messages.mode_to_wire(speculate(3)), 4, "p")
    assert len(found.fuse_reason) == 256
    assert not messages.in_force(pb.InForce.SOURCE_STOCK, None).HasField("mode")
