"""The controller as a whole, as `trimtab show` without an engine prints it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec
from google.protobuf.message import Message

from trimtab.cli.duration import format_duration
from trimtab.cli.output import print_lines
from trimtab.cli.page import Line, pairs_text
from trimtab.cli.views import mode_view, seconds_of, selector_text, state_name, when
from trimtabpb.v1 import admin_pb2


class StandingPinView(msgspec.Struct, frozen=True):
    """A pin for labels or all, which also holds for engines that connect later.

    Attributes:
        ordered_for: Labels, or "all".
        what: The mode, "steps MIN-MAX", or "plain" for each engine's cheapest safe kind.
        remaining_s: Null until released.
        released: Engines that it does not hold for, as they were released: ids or labels.
    """

    ordered_for: str
    what: str
    remaining_s: float | None
    owner: str
    reason: str
    pinned_at: str | None
    released: tuple[str, ...]


class StandingPolicyView(msgspec.Struct, frozen=True):
    """A policy for labels or all, which engines that connect later get as well."""

    ordered_for: str
    policy: str
    parameters: Mapping[str, str]
    shadow: bool


class CanaryView(msgspec.Struct, frozen=True):
    """A policy that acts on a share of the engines. `engines` are those that it acts on now."""

    policy: str
    parameters: Mapping[str, str]
    ordered_for: str
    share: float
    since: str | None
    engines: tuple[str, ...]


class ControllerView(msgspec.Struct, frozen=True):
    """The controller.

    `engines` counts them by state, `refused` counts what was refused beside engines, by reason; `journal_problem` says
    why the journal fails.
    """

    version: str
    started_at: str | None
    engines: Mapping[str, int]
    standing_pins: tuple[StandingPinView, ...]
    standing_policies: tuple[StandingPolicyView, ...]
    canary: CanaryView | None
    refused: Mapping[str, int]
    journal_problem: str | None


def controller_view(answer: admin_pb2.ListEnginesResponse) -> ControllerView:
    """What the controller says of itself."""
    controller = answer.controller
    return ControllerView(
        version=answer.controller_version,
        started_at=when(controller, "started_at"),
        engines=dict(sorted(Counter(state_name(engine) for engine in answer.engines).items())),
        standing_pins=tuple(map(_pin, controller.pins)),
        standing_policies=tuple(
            StandingPolicyView(selector_text(p.selector), p.policy, dict(p.parameters), p.shadow)
            for p in controller.policies
        ),
        canary=canary_view(controller),
        refused=dict(sorted(controller.refused.items())),
        journal_problem=answer.journal.problem or None,
    )


def canary_view(message: Message) -> CanaryView | None:
    """The canary of an answer that may have one."""
    if not message.HasField("canary"):
        return None
    canary: admin_pb2.Canary = getattr(message, "canary")  # noqa: B009 - several messages have one
    return CanaryView(
        policy=canary.policy,
        parameters=dict(canary.parameters),
        ordered_for=selector_text(canary.selector),
        share=canary.share,
        since=when(canary, "since"),
        engines=tuple(canary.engine_ids),
    )


def _pin(pin: admin_pb2.StandingPin) -> StandingPinView:
    what = "plain" if pin.any_plain else str(mode_view(pin.mode) or "-")
    if pin.HasField("range"):
        what = f"steps {pin.range.min_steps}-{pin.range.max_steps}"
    return StandingPinView(
        ordered_for=selector_text(pin.selector),
        what=what,
        remaining_s=seconds_of(pin, "remaining"),
        owner=pin.owner,
        reason=pin.reason,
        pinned_at=when(pin, "pinned_at"),
        released=tuple(map(selector_text, pin.released)),
    )


def print_overview(view: ControllerView) -> None:
    """Print the controller's page."""
    print_lines(lines(view))


def lines(view: ControllerView) -> Iterator[Line]:
    """The page, a name and its text a line."""
    yield "controller", f"version {view.version}, since {view.started_at or '-'}"
    yield "engines", pairs_text(view.engines)
    for pin in view.standing_pins:
        yield "pin", _pin_text(pin)
    for policy in view.standing_policies:
        shadow = ", in shadow" if policy.shadow else ""
        yield "policy", f"{policy.policy} for {policy.ordered_for}{shadow}: {pairs_text(policy.parameters)}"
    yield "canary", canary_text(view.canary) if view.canary else "none"
    yield "refused", pairs_text(view.refused)
    if view.journal_problem:
        yield "journal", f"it fails: {view.journal_problem}"


def canary_text(canary: CanaryView) -> str:
    """The canary in a line."""
    acts_on = ", ".join(canary.engines) or "no engine"
    return f"{canary.policy} on {acts_on} ({canary.share:.0%} of {canary.ordered_for}), since {canary.since}"


def _pin_text(pin: StandingPinView) -> str:
    until = "until released" if pin.remaining_s is None else f"{format_duration(pin.remaining_s)} left"
    but = f", not for {'; '.join(pin.released)}" if pin.released else ""
    return (
        f"{pin.what} for {pin.ordered_for}{but}, {until}, by {pin.owner or '-'} at {pin.pinned_at}: {pin.reason or '-'}"
    )
