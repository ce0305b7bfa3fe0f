import msgspec
import pytest
from google.protobuf.text_format import Parse

from support.admin_messages import SILENT, controller, engine
from trimtab.cli.overview import controller_view
from trimtab.cli.views import engine_detail, engine_view, mode_view, selector_text
from trimtab.domain import PLAIN_COLD, PLAIN_NATIVE, PLAIN_WARM, Mode, speculate
from trimtabpb.v1 import admin_pb2, control_pb2

KINDS = control_pb2.Mode.Kind


def as_json(value: object) -> dict[str, object]:
    return msgspec.json.decode(msgspec.json.encode(value), type=dict[str, object])


def test_an_engine_in_a_line_says_what_it_runs_who_decides_and_how_it_goes() -> None:
    assert as_json(engine_view(engine())) == {
        "engine_id": "llama-a",
        "state": "connected",
        "labels": {"team": "chat"},
        "model": "llama-8b",
        "acts": True,
        "mode": {"kind": "plain_warm", "steps": 0},
        "decided_by": "pin",
        "policy": "ucb",
        "policy_paused": True,
        "canary": True,
        "shadow": {
            "policy": "goodput",
            "steps": 1200,
            "agreement": 0.94,
            "unusable": None,
            "bands": [
                {
                    "min_batch_size": 1,
                    "max_batch_size": None,
                    "mode": {"kind": "speculate", "steps": 1},
                    "probability": 1.0,
                    "reason": "exploit",
                    "candidates": [],
                }
            ],
        },
        "pin": {
            "mode": {"kind": "plain_warm", "steps": 0},
            "owner": "kim@ops",
            "reason": "latency",
            "remaining_s": 598.0,
            "pinned_at": "2023-11-14T22:13:20+00:00",
            "in_force": True,
            "min_steps": None,
            "max_steps": None,
            "ordered_for": None,
        },
        "lease": {"version": 7, "age_s": 0.4, "acknowledged": True, "refusal": None},
        "goodput_tps": 1234.5,
        "accepted_drafts": 1.91,
        "step_ms": 7.25,
        "batch_size": 3.5,
        "switches": 12,
        "running_requests": 4,
        "waiting_requests": 1,
        "last_message_age_s": 0.1,
    }


def test_what_nobody_said_is_null_and_not_zero() -> None:
    view = as_json(engine_detail(engine(SILENT)))
    for key in (
        "mode", "decided_by", "model", "policy", "pin", "lease", "goodput_tps", "accepted_drafts", "step_ms",
        "batch_size", "last_message_age_s", "plain", "stale_share",
        "boot_id", "connected_at", "max_running_requests", "kv_capacity_tokens",
    ):  # fmt: skip
        assert view[key] is None, key
    software = view["software"]
    assert isinstance(software, dict)
    assert set(software.values()) == {None}


def test_the_full_picture_holds_everything_of_the_line_and_more() -> None:
    line, full = as_json(engine_view(engine())), as_json(engine_detail(engine()))
    assert {key: full[key] for key in line} == line
    assert full["offers"] == [
        {"kind": "plain_warm", "steps": 0}, {"kind": "speculate", "steps": 1}, {"kind": "speculate", "steps": 3},
    ]  # fmt: skip
    assert full["refused_modes"] == {"plain_native": "not proven with LoRA"}
    assert (full["stale_share"], full["stale_resumes"]) == (0.25, 3)
    assert full["dropped"] == {"negative_count": 2}
    assert full["refused"] == {"lease_no_state": 1}
    assert full["journal_problem"] is None
    assert as_json(engine_detail(engine(), "disk_full: no room"))["journal_problem"] == "disk_full: no room"
    assert full["hooks_applied"] == 1
    assert full["hooks_not_applied"] == {"a.B.d": "no such method [in 0.5.16]"}
    assert full["speculation"] == {
        "algorithm": "EAGLE", "topk": 1, "adaptive": True, "initial_steps": 3, "candidate_steps": [0, 1, 3],
        "rejection_sampling": False, "block_verification": False, "accept_threshold_single": 0.9,
        "accept_threshold_acc": None, "model": "llama-8b", "draft_model": None, "attention_backend": None,
        "device": None, "dtype": None, "kv_cache_dtype": None, "weight_version": None, "device_name": None,
    }  # fmt: skip


def test_bands_end_where_the_next_begins_and_unknown_expectations_are_null() -> None:
    bands = engine_detail(engine()).bands
    assert [(b.min_batch_size, b.max_batch_size, b.mode) for b in bands] == [
        (1, 1, speculate(3)), (2, 4, PLAIN_WARM), (5, None, speculate(1)),
    ]  # fmt: skip
    chosen, plain = bands[0].candidates
    assert (chosen.accepted_drafts, chosen.goodput_high_tps) == (1.9, 1300)
    assert (plain.step_ms, plain.accepted_drafts, plain.goodput_tps) == (5, None, None)


def test_a_pin_on_a_range_and_whom_it_stands_for_are_shown() -> None:
    ranged = engine()
    ranged.MergeFrom(engine("pin { range { max_steps: 3 } } pin_selector { labels { key: 'a' value: '1' } }"))
    pin = engine_view(ranged).pin
    assert pin is not None
    assert (pin.min_steps, pin.max_steps, pin.ordered_for, pin.what) == (0, 3, "a=1", "steps 0-3")
    for selector, text in (("all: true", "all"), ("engine_ids: 'b' engine_ids: 'a'", "b, a")):
        assert selector_text(Parse(selector, admin_pb2.Selector())) == text


def test_a_shadow_before_its_first_step_agrees_with_nothing_yet() -> None:
    shadow = engine_view(engine('policy { shadow { name: "ucb" unusable: "no modes" } }')).shadow
    assert shadow is not None
    assert (shadow.agreement, shadow.unusable, shadow.bands) == (None, "no modes", ())


def test_the_controller_says_what_stands_what_is_on_trial_and_what_was_refused() -> None:
    answer = admin_pb2.ListEnginesResponse(
        engines=[engine(), engine(SILENT)], controller_version="1.2", controller=controller(),
        journal=admin_pb2.JournalState(problem="no space left"),
    )  # fmt: skip
    since = "2023-11-14T22:13:20+00:00"
    assert as_json(controller_view(answer)) == {
        "version": "1.2",
        "started_at": since,
        "engines": {"connected": 1, "disconnected": 1},
        "standing_pins": [
            {
                "ordered_for": "team=chat", "what": "plain", "remaining_s": 598.0, "owner": "kim@ops",
                "reason": "latency", "pinned_at": since, "released": ["llama-b", "zone=1"],
            },
            {
                "ordered_for": "all", "what": "steps 1-3", "remaining_s": None, "owner": "", "reason": "",
                "pinned_at": since, "released": [],
            },
        ],
        "standing_policies": [
            {"ordered_for": "team=chat", "policy": "fixed", "parameters": {"steps": "3"}, "shadow": False},
            {"ordered_for": "all", "policy": "ucb", "parameters": {}, "shadow": True},
        ],
        "canary": {
            "policy": "goodput", "parameters": {"margin": "0.01"}, "ordered_for": "all", "share": 0.1, "since": since,
            "engines": ["llama-a"],
        },
        "refused": {"permission_denied": 3},
        "journal_problem": "no space left",
    }  # fmt: skip


@pytest.mark.parametrize("change", ['in_force { pin_id: "p0" }', "in_force { source: SOURCE_LEASE }"])
def test_a_pin_is_in_force_only_when_the_engine_says_so(change: str) -> None:
    pinned = engine()
    pinned.MergeFrom(engine(change))
    pin = engine_view(pinned).pin
    assert pin is not None
    assert not pin.in_force


@pytest.mark.parametrize(
    ("kind", "steps", "mode"),
    [
        (KINDS.KIND_SPECULATE, 3, speculate(3)),
        (KINDS.KIND_PLAIN_WARM, 0, PLAIN_WARM),
        (KINDS.KIND_PLAIN_COLD, 0, PLAIN_COLD),
        (KINDS.KIND_PLAIN_NATIVE, 0, PLAIN_NATIVE),
        (KINDS.KIND_UNSPECIFIED, 0, None),
        (KINDS.KIND_SPECULATE, 0, None),
        (99, 0, None),
    ],
)
def test_a_mode_of_a_later_version_is_unknown_rather_than_an_error(
    kind: KINDS.ValueType, steps: int, mode: Mode | None
) -> None:
    assert mode_view(control_pb2.Mode(kind=kind, steps=steps)) == mode
