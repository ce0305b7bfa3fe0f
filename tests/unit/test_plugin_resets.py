"""Other weights, adapters or memory under a running engine: what was learned of it starts over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from support.unlinked_engine import Unlinked
from trimtab_sglang.resets import Resets
from trimtab_sglang.rows import WARM_UP


@pytest.mark.parametrize(
    ("owner", "method", "reason"),
    [
        ("weight_updater", "update_weights_from_disk", "weights updated"),
        ("weight_updater", "update_weights_from_distributed", "weights updated"),
        ("weight_updater", "update_weights_from_tensor", "weights updated"),
        ("weight_updater", "update_weights_from_ipc", "weights updated"),
        ("weight_updater", "end_weight_update", "weights updated"),
        ("weight_updater", "resume_memory_occupation", "memory released and resumed"),
        ("", "load_lora_adapter", "LoRA adapter loaded"),
        ("", "load_lora_adapter_from_tensors", "LoRA adapter loaded"),
        ("", "unload_lora_adapter", "LoRA adapter unloaded"),
    ],
)
def test_it_is_noticed_and_reported(owner: str, method: str, reason: str) -> None:
    unlinked = Unlinked()
    before = unlinked.report()
    assert (before.resets, before.reset_reason) == (0, "")
    scheduler = unlinked.engine.scheduler
    assert getattr(getattr(scheduler, owner) if owner else scheduler, method)(SimpleNamespace()) is None
    after = unlinked.report()
    assert (after.resets, after.reset_reason, after.weight_version) == (1, reason, "")


def test_the_version_of_the_weights_is_said_from_then_on() -> None:
    unlinked = Unlinked()
    updater: Any = unlinked.engine.scheduler.weight_updater
    updater.update_weights_from_disk(SimpleNamespace(weight_version="step-200"))
    updater.resume_memory_occupation(SimpleNamespace(tags=None))
    report, hello = unlinked.report(), unlinked.link.hello().hello
    assert (report.resets, report.reset_reason, report.weight_version) == (
        2, "memory released and resumed", "step-200",
    )  # fmt: skip
    assert (hello.resets, hello.speculation.weight_version) == (2, "step-200")


def test_the_first_rows_after_it_are_warm_up_again_and_the_guard_knows_nothing() -> None:
    unlinked = Unlinked()
    engine = unlinked.engine
    engine.admit(2)
    engine.decode(8)
    assert [bool(flags & WARM_UP) for flags in unlinked.report().rows.flags] == [True] * 3 + [False] * 5
    unlinked.engine.scheduler.weight_updater.update_weights_from_tensor(SimpleNamespace())
    engine.decode(8)
    assert [bool(flags & WARM_UP) for flags in unlinked.report().rows.flags] == [True] * 3 + [False] * 5
    assert [pace.rows for paces in unlinked.link._guard._estimate._paces.values() for pace in paces.values()] == [5]


def test_behind_a_blown_fuse_nothing_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def boom(*_: Any) -> None:
        raise RuntimeError("boom")

    unlinked = Unlinked()
    monkeypatch.setattr(Resets, "note", boom)
    updater: Any = unlinked.engine.scheduler.weight_updater
    updater.update_weights_from_disk(SimpleNamespace())
    assert unlinked.engine.plugin.fuse.reason == "noting a reset: RuntimeError: boom"
    updater.update_weights_from_disk(SimpleNamespace())
