"""Which plain modes a server is offered, and the reasons against the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from support.hooked_engine import EmbeddedEngine
from trimtab_sglang.facts import EngineFacts, Ranks, reasons_to_observe
from trimtab_sglang.lease import PLAIN_COLD, PLAIN_NATIVE, PLAIN_WARM, speculate
from trimtab_sglang.plain_memory import PlainMemory
from trimtab_sglang.plain_offer import PlainOffer, offer, why_not_cold, why_not_native


class EAGLEWorkerV2:
    """A worker of the name that native plain is made for."""

    def __init__(self, target: Any = None, pool: Any = None, draft: Any = None) -> None:
        runner = SimpleNamespace(model_config=SimpleNamespace(**(target or {})))
        self.target_worker = SimpleNamespace(model_runner=runner)
        self.req_to_token_pool = SimpleNamespace(**(pool or {}))
        self.draft_worker = SimpleNamespace(**(draft or {}))


class NGRAMWorker:
    """Another one."""


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"speculative_use_rejection_sampling": True}, "rejection sampling: the draft probabilities would be stand-ins"),
    ({"speculative_use_block_verification": True}, "block verification: the draft probabilities would be stand-ins"),
    ({"tp_size": 2}, "not proven with several ranks"),
    ({"pp_size": 2}, "not proven with pipeline parallelism"),
    ({"enable_dp_attention": True}, "not proven with data-parallel attention"),
    ({"enable_two_batch_overlap": True}, "not proven with two-batch overlap"),
    ({"enable_pdmux": True}, "not proven with prefill/decode multiplexing"),
    ({"enable_lora": True}, "not proven with LoRA"),
    ({"lora_paths": ["a"]}, "not proven with LoRA"),
    ({"enable_hisparse": True}, "not proven with hierarchical sparse attention"),
    ({"disaggregation_mode": "decode"}, "not proven with disaggregation"),
]


def test_an_ordinary_server_is_offered_native_plain() -> None:
    server = {"pp_size": 1, "enable_lora": None, "disaggregation_mode": "null", "tp_size": 1}
    assert why_not_native(server, EAGLEWorkerV2(), {}) == ""


@pytest.mark.parametrize(("server", "reason"), REFUSED)
def test_each_setting_that_is_not_proven_is_named(server: dict[str, Any], reason: str) -> None:
    assert why_not_native(server, EAGLEWorkerV2(), {}) == reason


@pytest.mark.parametrize(
    ("worker", "reason"),
    [
        (None, "no speculation"),
        (NGRAMWorker(), "the speculative worker is NGRAMWorker, not EAGLEWorkerV2"),
        (EAGLEWorkerV2({"is_encoder_decoder": True}), "not proven with encoder-decoder models"),
        (EAGLEWorkerV2(pool={"mamba_pool": 1}), "not proven with models that keep a state besides the KV cache"),
        (
            EAGLEWorkerV2(draft={"seed_dsa_topk_from_draft_extend": True}),
            "not proven with drafts that share an index of attention",
        ),
    ],
)
def test_each_worker_and_model_that_is_not_proven_is_named(worker: Any, reason: str) -> None:
    assert why_not_native({}, worker, {}) == reason


def test_variables_of_sglang_that_change_the_path_are_named() -> None:
    variable = "SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION"
    assert why_not_native({}, EAGLEWorkerV2(), {variable: "1"}) == f"{variable}: its path has no round without drafts"
    assert why_not_native({}, EAGLEWorkerV2(), {variable: "false"}) == ""


@pytest.mark.parametrize(
    ("server", "zero_steps", "can_skip", "reason"),
    [
        ({}, True, True, ""),
        ({}, False, True, "zero steps are not among the candidates"),
        ({}, True, False, "this SGLang always runs the draft model in rounds of zero steps"),
        (REFUSED[0][0], True, True, REFUSED[0][1]),
        (REFUSED[1][0], True, True, REFUSED[1][1]),
    ],
)
def test_when_cold_plain_is_refused(server: dict[str, Any], zero_steps: bool, can_skip: bool, reason: str) -> None:
    assert why_not_cold(server, zero_steps, can_skip) == reason


# -- what the engine says ------------------------------------------------------------------------


def facts(plain: PlainOffer, **fields: Any) -> EngineFacts:
    server = {"speculative_algorithm": "EAGLE", "speculative_num_steps": 3}
    return EngineFacts("0.5.23", Ranks(), server, plain=plain, **fields)


def test_beside_a_fixed_step_server_plain_and_its_own_steps_are_the_control_that_is_offered() -> None:
    found = facts(offer("", "zero steps are not among the candidates", PlainMemory(64)))
    assert found.modes == (PLAIN_NATIVE, speculate(3))
    assert reasons_to_observe(found, [], known_version=True) == []


def test_without_native_plain_a_fixed_step_server_is_observed_and_both_reasons_are_given() -> None:
    found = facts(offer("not proven with LoRA", "x", None))
    assert found.modes == ()
    assert reasons_to_observe(found, [], known_version=True) == [
        "the server runs without --speculative-adaptive, so there is one step count only",
        "no plain_native: not proven with LoRA",
    ]


def test_beside_an_adaptive_server_the_plain_modes_come_before_its_steps() -> None:
    found = facts(offer("", "", PlainMemory(64)), adaptive=True, candidate_steps=(0, 1, 3))
    assert found.modes == (PLAIN_NATIVE, PLAIN_COLD, PLAIN_WARM, speculate(1), speculate(3))


def test_what_is_refused_takes_no_memory() -> None:
    made = offer("not proven with LoRA", "", PlainMemory(64))
    assert (made.modes, made.memory) == ((PLAIN_COLD,), None)
    assert made.refused == {PLAIN_NATIVE: "not proven with LoRA"}


def test_an_engine_of_another_kind_refuses_both_and_says_why() -> None:
    found = EmbeddedEngine().plugin.facts
    assert found is not None
    assert found.plain.refused == {
        PLAIN_NATIVE: "the speculative worker is DraftWorker, not EAGLEWorkerV2",
        PLAIN_COLD: "this SGLang always runs the draft model in rounds of zero steps",
    }
