"""Graphs of the target are captured among the target's ranks, wherever SGLang builds them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from support.hooked_engine import UNLINKED, EmbeddedEngine
from trimtab_sglang.target_scope import wrap_capture

ALL, ONE = "all ranks", "one rank"


class Parallel:
    """The part of SGLang's that counts: values that an override hides."""

    def __init__(self) -> None:
        self.hidden: dict[str, Any] = {}

    @property
    def tp_size(self) -> int:
        return int(self.hidden.get("tp_size", 2))

    @property
    def moe_ep_group(self) -> Any:
        raise AssertionError("not set up")

    @contextmanager
    def override(self, **values: Any) -> Iterator[None]:
        before, self.hidden = self.hidden, {**self.hidden, **values}
        try:
            yield
        finally:
            self.hidden = before


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    state, parallel = SimpleNamespace(_TP=ALL), Parallel()
    distributed, context = ModuleType("distributed"), ModuleType("context")
    distributed.parallel_state = state  # type: ignore[attr-defined]
    context.get_parallel, context.get_flags = lambda: parallel, lambda: SimpleNamespace(dp=SimpleNamespace())  # type: ignore[attr-defined]
    for name in ("sglang", "sglang.srt"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "sglang.srt.distributed", distributed)
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", context)
    return SimpleNamespace(state=state, parallel=parallel)


def test_a_target_is_captured_among_all_ranks_also_inside_the_drafts_group(sglang: SimpleNamespace) -> None:
    seen: list[tuple[str, int, tuple[Any, ...]]] = []

    def original(runner: Any, model_runner: Any, *args: Any, **kwargs: Any) -> None:
        seen.append((sglang.state._TP, sglang.parallel.tp_size, (*args, *kwargs.values())))

    capture = wrap_capture(EmbeddedEngine(UNLINKED).plugin, original)
    target, draft = SimpleNamespace(is_draft_worker=False), SimpleNamespace(is_draft_worker=True)
    capture(None, target)
    with sglang.parallel.override(tp_size=1):
        sglang.state._TP = ONE
        capture(None, draft)
        capture(None, target, attn_backend="b", speculative_num_steps=1)
        assert (sglang.state._TP, sglang.parallel.tp_size) == (ONE, 1)
    assert seen == [(ALL, 2, ()), (ONE, 1, ()), (ALL, 2, ("b", 1))]


def test_a_capture_that_fails_leaves_the_drafts_group(sglang: SimpleNamespace) -> None:
    calls = iter([None, ValueError("out of memory")])

    def original(runner: Any, model_runner: Any) -> None:
        error = next(calls)
        if error:
            raise error

    capture = wrap_capture(EmbeddedEngine(UNLINKED).plugin, original)
    target = SimpleNamespace(is_draft_worker=False)
    capture(None, target)
    sglang.state._TP = ONE
    with pytest.raises(ValueError, match="out of memory"):
        capture(None, target)
    assert sglang.state._TP == ONE
