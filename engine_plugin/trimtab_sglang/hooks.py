"""What runs on SGLang's scheduler thread. Closures over one `Plugin`, each a few hundred nanoseconds.

Every hook gets out of the way once the fuse is blown, and none lets an exception of ours through. The
originals are called outside of our own `try`, so SGLang's exceptions pass untouched.

The four on the step path (`wrap_...`) make a method out of the original: same name, same parameters, one
call. SGLang's own wrappers pack and unpack arguments instead, which at a microsecond or two for all hooks of a
step is a good part of it; `host.py` puts the method in directly where nobody else hooks the same place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trimtab_sglang import together
from trimtab_sglang.facts import server_settings
from trimtab_sglang.footprint import free_device_bytes
from trimtab_sglang.ranks import Command, Order, apply, take_commands

if TYPE_CHECKING:
    from trimtab_sglang.plugin import Plugin

Hook = Callable[..., Any]


def after_scheduler_init(plugin: Plugin) -> Hook:
    """Look at the scheduler once it is complete, and decide what the plugin may do beside it."""

    def hook(result: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        try:
            plugin.attach(scheduler)
        except Exception as error:  # noqa: BLE001
            plugin.fuse.blow("attaching to the scheduler", error)

    return hook


def after_cuda_graphs(plugin: Plugin) -> Hook:
    """Build what native plain runs on, once SGLang has captured its own graphs."""

    def hook(result: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        try:
            plugin.plain.build(scheduler.draft_worker, server_settings(scheduler.server_args), plugin.settings)
        except Exception as error:  # noqa: BLE001
            plugin.fuse.blow("building native plain", error)

    return hook


def after_reset(plugin: Plugin, what: str) -> Hook:
    """Note that what was learned of the engine no longer holds. Whether SGLang succeeded is not asked: half may."""
    fuse, resets = plugin.fuse, plugin.resets

    def hook(result: Any, owner: Any, request: Any = None, *args: Any, **kwargs: Any) -> None:
        if fuse.blown:
            return
        try:
            resets.note(what, getattr(request, "weight_version", None))
        except Exception as error:  # noqa: BLE001
            fuse.blow("noting a reset", error)

    return hook


def wrap_init_states(plugin: Plugin, original: Hook) -> Hook:
    """Measure what building the candidates takes."""

    def init_states(self: Any, cuda_graph_bs: list[int] | None = None) -> Any:
        before = free_device_bytes()
        returned = original(self, cuda_graph_bs)
        after = free_device_bytes()
        if before is not None and after is not None:
            plugin.candidate_bytes = max(0, before - after)
        return returned

    return init_states


def wrap_pull(plugin: Plugin, original: Hook) -> Hook:
    """Append due commands to the requests of this iteration, on the speaking rank."""
    if plugin.team is not None:
        return together.wrap_pull(plugin, plugin.team, original)
    fuse, mailbox, recorder, clock = plugin.fuse, plugin.mailbox, plugin.recorder, time.monotonic_ns
    posted = mailbox.posted

    def _pull_raw_reqs(self: Any) -> list[Any] | None:
        requests: list[Any] | None = original(self)
        # Deadlines are looked at with the clock of the newest result: reading it anew at every iteration
        # would be for idle ones, and those run no mode.
        if requests is None or (not posted and recorder.now_ns < mailbox.next_deadline_ns):
            return requests
        try:
            # Also with a blown fuse: somebody has to say so.
            if not plugin.started:
                plugin.start()
            due = mailbox.collect(clock())
            if fuse.blown:
                due = [command for command in due if command.order is Order.FALL_BACK]
            return [*requests, *due]
        except Exception as error:  # noqa: BLE001
            fuse.blow("collecting commands", error)
            posted.clear()
            return requests

    return _pull_raw_reqs


def wrap_process_requests(plugin: Plugin, original: Hook) -> Hook:
    """Take the commands out of the broadcast requests and apply them, on every rank.

    Also with a blown fuse: SGLang does not know our commands and would fail on one.
    """
    machine = plugin.machine

    def process_input_requests(self: Any, recv_reqs: list[Any]) -> Any:
        if recv_reqs and any(type(request) is Command for request in recv_reqs):
            recv_reqs, commands = take_commands(recv_reqs)
            if plugin.team is not None:
                together.obey(commands, machine, plugin.fuse)
                return original(self, recv_reqs)
            try:
                for command in commands:
                    apply(command, machine)
                if plugin.native is not None:
                    plugin.native.follow()
            except Exception as error:  # noqa: BLE001
                plugin.fuse.blow("applying commands", error)
        return original(self, recv_reqs)

    return process_input_requests


def wrap_run_batch(plugin: Plugin, original: Hook) -> Hook:
    """Tag the result of a decode launch with what was launched; note prefill."""
    if plugin.team is not None:
        original = together.with_last_words(plugin.team, original)
    fuse, recorder, machine = plugin.fuse, plugin.recorder, plugin.machine
    # Built once the scheduler is complete, so the policy is there if there will be one.
    decode, policy = plugin.decode_forward_mode, plugin.policy

    def run_batch(self: Any, batch: Any, pp_proxy_tensors: Any = None) -> Any:
        result = original(self, batch, pp_proxy_tensors)
        if fuse.blown:
            return result
        try:
            if batch.forward_mode is not decode:
                recorder.launched_prefill(batch.extend_num_tokens or 0)
                return result
            recorder.launches = launch_id = recorder.launches + 1
            if policy is None:
                # No policy was asked, so nobody counted the step.
                machine.step += 1
                stock_steps = -1
            else:
                stock_steps = policy.stock_steps
            gap, prefill_tokens = recorder.gap, 0
            if gap:
                prefill_tokens = recorder.prefill_tokens
                recorder.gap, recorder.prefill_tokens = False, 0
            elif self.last_batch is None:
                gap = True
            # In the order of `Launch`.
            recorder.last = result.trimtab_launch = (
                launch_id,
                machine.step,
                machine.choice,
                stock_steps,
                gap,
                prefill_tokens,
            )
        except Exception as error:  # noqa: BLE001
            fuse.blow("tagging a launch", error)
        return result

    return run_batch


def wrap_decode_result(plugin: Plugin, original: Hook) -> Hook:
    """Record a decode result: what was launched, what came back, and which requests ended."""
    fuse, recorder, clock = plugin.fuse, plugin.recorder, time.monotonic_ns
    append = recorder.ring.append

    def process_batch_result_decode(self: Any, batch: Any, result: Any) -> Any:
        try:
            launch = result.trimtab_launch
        except AttributeError:
            launch = None
        recorder.processing = launch
        late: Sequence[Any] = ()
        try:
            late = recorder.ended
            if recorder.released:
                late = [*late, *recorder.take_released()]
        except Exception as error:  # noqa: BLE001
            fuse.blow("looking for late requests", error)
        returned = original(self, batch, result)
        if launch is None:
            return returned
        try:
            recorder.ended = ended = recorder.take_released() if recorder.released else ()
            recorder.now_ns = now_ns = clock()
            # In the order of `RawRow`.
            append(
                (
                    launch,
                    now_ns,
                    batch.reqs,
                    result.num_correct_drafts_per_req_cpu,
                    late,
                    ended,
                    result.can_run_cuda_graph,
                    batch.seq_lens_cpu,
                    getattr(result, "grammar_retained_tokens", None) if batch.has_grammar else None,
                    result.speculative_num_draft_tokens,
                )
            )
        except Exception as error:  # noqa: BLE001
            fuse.blow("recording a result", error)
        return returned

    return process_batch_result_decode


def as_around(wrap: Callable[[Hook], Hook]) -> Hook:
    """The hook of SGLang's kind "around" that does what the wrapped method does."""
    methods: dict[Hook, Hook] = {}

    def hook(original: Hook, *args: Any, **kwargs: Any) -> Any:
        method = methods.get(original)
        if method is None:
            method = methods[original] = wrap(original)
        return method(*args, **kwargs)

    return hook


def before_release(plugin: Plugin) -> Hook:
    """Note a request whose slots are given back: it finished, was aborted or retracted.

    Also with a blown fuse: what the draft model has not read must stay out of the prefix cache.
    """
    fuse, recorder = plugin.fuse, plugin.recorder

    def hook(request: Any, *args: Any, **kwargs: Any) -> None:
        try:
            native = plugin.native
            if native is not None and native.gap:
                native.gap.release(request)
            if not fuse.blown:
                recorder.released.append(request)
        except Exception as error:  # noqa: BLE001
            fuse.blow("noting a released request", error)

    return hook
