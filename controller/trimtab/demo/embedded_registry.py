"""Applies the plugin's hooks to the embedded engine the way SGLang's registry does to SGLang."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from trimtab_sglang.host import HookKind, replace_wrapper

Function = Callable[..., Any]


class EmbeddedRegistry:
    """Finds the last names of a hook's target in one module and wraps what is there.

    Args:
        module: Module in the shape of SGLang's (`sglang_shape`).
    """

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._applied: set[str] = set()

    def register(self, target: str, hook: Function, kind: HookKind) -> None:
        """Apply a hook at once."""
        owner, name = self._place(target)
        original = getattr(owner, name)
        setattr(owner, name, hook if kind is HookKind.REPLACE else WRAPPERS[kind](original, hook))
        self._applied.add(target)

    def resolve(self, target: str) -> Any:
        """What is at the target; AttributeError if there is nothing."""
        owner, name = self._place(target)
        return getattr(owner, name)

    def applied(self, target: str) -> bool:
        """Whether a hook of this target is in place."""
        return target in self._applied

    def bind(self, target: str, wrap: Callable[[Function], Function]) -> bool:
        """Nobody else hooks the embedded engine."""
        return replace_wrapper(*self._place(target), wrap)

    def _place(self, target: str) -> tuple[Any, str]:
        *_, owner, name = target.split(".")
        return getattr(self._module, owner, self._module), name


def _before(original: Function, hook: Function) -> Function:
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        changed = hook(*args, **kwargs)
        if changed is not None:
            args, kwargs = changed
        return original(*args, **kwargs)

    return wrapper


def _after(original: Function, hook: Function) -> Function:
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        changed = hook(result, *args, **kwargs)
        return result if changed is None else changed

    return wrapper


def _around(original: Function, hook: Function) -> Function:
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return hook(original, *args, **kwargs)

    return wrapper


WRAPPERS: dict[HookKind, Callable[[Function, Function], Function]] = {
    HookKind.BEFORE: _before,
    HookKind.AFTER: _after,
    HookKind.AROUND: _around,
}
