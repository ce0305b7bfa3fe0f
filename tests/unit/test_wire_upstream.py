"""Hello, Report and Ack as values: what is taken, what is cut, and which field is named when one is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf.duration_pb2 import Duration

from trimtab.domain import PLAIN_WARM, CostKey, EngineKey, InForce, Pin, Source, speculate
from trimtab.errors import WireError
from trimtab.session.events import Answered
from trimtab.wire import mode_to_wire, read_ack, read_hello, read_report
from trimtabpb.v1 import control_pb2 as pb


def hello() -> pb.Hello:
    return pb.Hello(
        protocol_version=1,
        engine_id="gpu-7:30000",
        boot_id="b1",
        labels={"team": "chat"},
        software=pb.Software(sglang_version="0.5.23"),
        topology=pb.Topology(tp_size=1, dp_size=2, dp_rank=1),
        speculation=pb.Speculation(model="/models/llama", initial_steps=3, block_verification=True),
        modes=[mode_to_wire(PLAIN_WARM), mode_to_wire(speculate(3)), mode_to_wire(PLAIN_WARM)],
        graph_batch_sizes=[4, 1, 2, 2],
        max_running_requests=48,
        acts=True,
        in_force=pb.InForce(source=pb.InForce.SOURCE_PIN, mode=mode_to_wire(speculate(3)), pin_id="p", lease_version=6),
        pin=pb.Pin(
            id="p", mode=mode_to_wire(speculate(3)), remaining=Duration(seconds=7, nanos=500_000_000), owner="kim"
        ),
        last_lease_version=9,
    )


def test_a_hello_says_who_the_engine_is_and_what_it_can_do() -> None:
    info, shown = read_hello(hello())

    assert info.key == EngineKey("gpu-7:30000", 1)
    assert str(info.key) == "gpu-7:30000/1"
    assert info.modes == (PLAIN_WARM, speculate(3))
    assert info.graph_batch_sizes == (1, 2, 4)
    assert info.labels == {"team": "chat"}
    assert info.block_verification
    assert info.in_force == InForce(Source.PIN, speculate(3), lease_version=6, pin_id="p")
    assert info.pin == Pin("p", speculate(3), owner="kim")
    assert info.pin_remaining_s == 7.5
    assert info.last_lease_version == 9
    assert shown == hello()


def test_a_hello_says_what_step_times_depend_on() -> None:
    message = hello()
    message.topology.tp_size = 8
    message.kv_capacity_tokens = 4096
    said = message.speculation
    said.draft_model, said.weight_version, said.device_name = "/models/llama-eagle", "v1", "NVIDIA H200"
    said.attention_backend, said.dtype, said.kv_cache_dtype = "fa3", "bfloat16", "fp8_e4m3"
    info, _ = read_hello(message)

    assert info.cost_key == CostKey(
        "/models/llama", "v1", "/models/llama-eagle", "NVIDIA H200", "fa3", "bfloat16", "fp8_e4m3", 8, "0.5.23"
    )
    assert info.kv_capacity_tokens == 4096


def test_the_mode_after_the_last_lease_is_the_operators_and_not_the_engines_own_rule() -> None:
    message = hello()
    message.in_force.source, message.in_force.after_expiry = pb.InForce.SOURCE_STOCK, True
    assert read_hello(message)[0].in_force.source is Source.EXPIRY
    message.in_force.source = pb.InForce.SOURCE_LEASE
    assert read_hello(message)[0].in_force.source is Source.LEASE


def test_a_pin_without_an_end_and_an_engine_without_anything_in_force() -> None:
    message = hello()
    message.pin.ClearField("remaining")
    message.ClearField("in_force")
    info, _ = read_hello(message)

    assert info.pin is not None
    assert info.pin_remaining_s is None
    assert info.in_force == InForce()


def test_texts_for_people_are_cut_and_never_a_reason_to_refuse() -> None:
    message = hello()
    message.observe_reasons.append("why\n" * 100)
    message.hooks.add(target="t" * 300, reason="r" * 300)
    message.pin.reason = "long " * 100
    message.in_force.fuse_reason = "f" * 257
    message.on_expiry = "o" * 257
    info, shown = read_hello(message)

    assert len(info.observe_reasons[0]) == 256
    assert "\n" not in info.observe_reasons[0]
    assert len(shown.hooks[0].target) == len(shown.hooks[0].reason) == 256
    assert info.pin is not None
    assert len(info.pin.reason) == 256
    assert len(shown.on_expiry) == 256
    assert len(info.in_force.fuse_reason) == len(shown.in_force.fuse_reason) == 256
    assert len(message.hooks[0].target) == 300, "the message itself is left as it came"


def change(**fields: object) -> Callable[[pb.Hello], None]:
    def apply(message: pb.Hello) -> None:
        for name, value in fields.items():
            part: object = message
            *path, last = name.split("__")
            for step in path:
                part = getattr(part, step)
            setattr(part, last, value)

    return apply


def extend(name: str, values: object) -> Callable[[pb.Hello], None]:
    return lambda message: getattr(message, name).extend(values)


BAD_HELLOS: dict[str, tuple[Callable[[pb.Hello], None], str]] = {
    "no protocol version": (change(protocol_version=0), "hello.protocol_version"),
    "no id": (change(engine_id=""), "hello.engine_id"),
    "id too long": (change(engine_id="e" * 257), "hello.engine_id"),
    "id with a line break": (change(engine_id="a\nb"), "hello.engine_id"),
    "id with blanks around": (change(engine_id=" a"), "hello.engine_id"),
    "id like a replica's": (change(engine_id="a/1"), "hello.engine_id"),
    "no boot id": (change(boot_id=""), "hello.boot_id"),
    "long version": (change(software__sglang_version="v" * 257), "hello.software.sglang_version"),
    "long device name": (change(speculation__device_name="d" * 257), "hello.speculation.device_name"),
    "long model path": (change(speculation__model="m" * 1025), "hello.speculation.model"),
    "rank beyond all": (change(topology__dp_rank=1 << 20), "hello.topology.dp_rank"),
    "version beyond all": (change(last_lease_version=(1 << 62) + 1), "hello.last_lease_version"),
    "unknown source": (change(in_force__source=99), "hello.in_force.source"),
    "no source": (change(in_force__source=0), "hello.in_force.source"),
    "wrong steps in force": (change(in_force__mode__steps=0), "hello.in_force.mode.steps"),
    "pin without id": (change(pin__id=""), "hello.pin.id"),
    "pin with a negative end": (change(pin__remaining__seconds=-1, pin__remaining__nanos=0), "hello.pin.remaining"),
    "pin with a broken end": (change(pin__remaining__nanos=2_000_000_000), "hello.pin.remaining"),
    "unknown mode": (extend("modes", [pb.Mode()]), "hello.modes[3].kind"),
    "too many modes": (extend("modes", [pb.Mode()] * 62), "hello.modes"),
    "graph size of nothing": (extend("graph_batch_sizes", [0]), "hello.graph_batch_sizes"),
    "graph size beyond all": (extend("graph_batch_sizes", [1 << 21]), "hello.graph_batch_sizes"),
    "too many labels": (lambda m: m.labels.update({str(i): "" for i in range(64)}), "hello.labels"),
    "long label": (lambda m: m.labels.update({"x": "y" * 257}), "hello.labels[x]"),
}


@pytest.mark.parametrize(("spoil", "field"), BAD_HELLOS.values(), ids=BAD_HELLOS)
def test_a_bad_hello_is_refused_by_the_name_of_the_field(spoil: Callable[[pb.Hello], None], field: str) -> None:
    message = hello()
    spoil(message)
    with pytest.raises(WireError) as caught:
        read_hello(message)

    assert caught.value.field == field


def test_a_report_without_rows_is_a_sign_of_life() -> None:
    report, refused = read_report(pb.Report(seq=1, now_ns=5, in_force=pb.InForce(source=pb.InForce.SOURCE_STOCK)))

    assert (report.seq, report.now_ns, report.rows, report.last_step_age_ns) == (1, 5, (), None)
    assert report.in_force == InForce()
    assert not refused


def test_a_report_tells_how_old_the_newest_step_is_also_if_that_is_nothing() -> None:
    report, _ = read_report(pb.Report(seq=1, last_step_age_ns=0))

    assert report.last_step_age_ns == 0


BAD_REPORTS = {
    "report.seq": pb.Report(),
    "report.now_ns": pb.Report(seq=1, now_ns=1 << 63),
    "report.running_requests": pb.Report(seq=1, running_requests=1 << 21),
    "report.dropped": pb.Report(seq=1, dropped={str(i): 1 for i in range(65)}),
    "report.dropped[x]": pb.Report(seq=1, dropped={"x": 1 << 63}),
    "report.last_step_age_ns": pb.Report(seq=1, last_step_age_ns=1 << 63),
    "report.in_force.source": pb.Report(seq=1, in_force=pb.InForce()),
}


@pytest.mark.parametrize(("field", "message"), BAD_REPORTS.items())
def test_a_bad_report_is_refused_by_the_name_of_the_field(field: str, message: pb.Report) -> None:
    with pytest.raises(WireError) as caught:
        read_report(message)

    assert caught.value.field == field


def test_answers_carry_the_refusal_in_words() -> None:
    accepted = pb.Ack(nonce=3, version=2, accepted=True)
    refused = pb.Ack(nonce=4, version=2, refusal=pb.REFUSAL_NO_STATE, detail="steps 5")

    assert read_ack(accepted) == Answered(3, 2, True)
    assert read_ack(refused) == Answered(4, 2, False, "no_state", "steps 5")
