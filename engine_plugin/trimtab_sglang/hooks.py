"""What runs on SGLang's scheduler thread. Closures over one `Plugin`, each a few hundred nanoseconds.

Every hook gets out of the way once the fuse is blown, and none lets an exception of ours through. The
originals are called outside of our own `try`, so SGLang's exceptions pass untouched.

Hooks on the step path are of SGLang's kind "around" and take exactly the parameters of what they wrap, by the
same names: packing and unpacking arguments would cost half as much again. `host.py` compares the signatures
before it installs them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trimtab_sglang.ranks import Command, apply, take_commands

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


def around_pull(plugin: Plugin) -> Hook:
    """Append due commands to the requests of this iteration, on the speaking rank."""
    fuse, mailbox, clock = plugin.fuse, plugin.mailbox, time.monotonic_ns
    posted = mailbox.posted

    def hook(original: Hook, receiver: Any) -> list[Any] | None:
        requests: list[Any] | None = original(receiver)
        if requests is None or fuse.blown or (not posted and clock() < mailbox.next_deadline_ns):
            return requests
        try:
            if not plugin.started:
                plugin.start()
            return [*requests, *mailbox.collect(clock())]
        except Exception as error:  # noqa: BLE001
            fuse.blow("collecting commands", error)
            return requests

    return hook


def around_process_requests(plugin: Plugin) -> Hook:
    """Take the commands out of the broadcast requests and apply them, on every rank.

    Also with a blown fuse: SGLang does not know our commands and would fail on one.
    """
    machine = plugin.machine

    def hook(original: Hook, scheduler: Any, recv_reqs: list[Any]) -> Any:
        if recv_reqs and any(type(request) is Command for request in recv_reqs):
            recv_reqs, commands = take_commands(recv_reqs)
            try:
                for command in commands:
                    apply(command, machine)
            except Exception as error:  # noqa: BLE001
                plugin.fuse.blow("applying commands", error)
        return original(scheduler, recv_reqs)

    return hook


def around_run_batch(plugin: Plugin) -> Hook:
    """Tag the result of a decode launch with what was launched; note prefill."""
    fuse, recorder, machine = plugin.fuse, plugin.recorder, plugin.machine
    decode = plugin.decode_forward_mode

    def hook(original: Hook, scheduler: Any, batch: Any, pp_proxy_tensors: Any = None) -> Any:
        result = original(scheduler, batch, pp_proxy_tensors)
        if fuse.blown:
            return result
        try:
            if batch.forward_mode is not decode:
                recorder.launched_prefill(batch.extend_num_tokens or 0)
                return result
            recorder.launches = launch_id = recorder.launches + 1
            policy = plugin.policy
            if policy is None:
                # No policy was asked, so nobody counted the step.
                machine.step += 1
                stock_steps = -1
            else:
                stock_steps = policy.stock_steps
            # In the order of `Launch`.
            recorder.last = result.trimtab_launch = (
                launch_id,
                machine.step,
                machine.choice,
                stock_steps,
                recorder.gap or scheduler.last_batch is None,
                recorder.prefill_tokens,
                len(scheduler.waiting_queue),
            )
            if recorder.gap:
                recorder.gap, recorder.prefill_tokens = False, 0
        except Exception as error:  # noqa: BLE001
            fuse.blow("tagging a launch", error)
        return result

    return hook


def around_decode_result(plugin: Plugin) -> Hook:
    """Record a decode result: what was launched, what came back, and which requests ended."""
    fuse, recorder, clock = plugin.fuse, plugin.recorder, time.monotonic_ns
    append = recorder.ring.append

    def hook(original: Hook, processor: Any, batch: Any, result: Any) -> Any:
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
        returned = original(processor, batch, result)
        if launch is None:
            return returned
        try:
            recorder.ended = ended = recorder.take_released() if recorder.released else ()
            # In the order of `RawRow`.
            append(
                (
                    launch,
                    clock(),
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

    return hook


def before_release(plugin: Plugin) -> Hook:
    """Note a request whose slots are given back: it finished, was aborted or retracted."""
    fuse, recorder = plugin.fuse, plugin.recorder

    def hook(request: Any, *args: Any, **kwargs: Any) -> None:
        if fuse.blown:
            return
        try:
            recorder.released.append(request)
        except Exception as error:  # noqa: BLE001
            fuse.blow("noting a released request", error)

    return hook
