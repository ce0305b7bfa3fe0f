"""SGLang's entry point to Trimtab, and the one object a scheduler process keeps of it."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab_sglang import host
from trimtab_sglang.facts import EngineFacts, HookStatus, bare_facts, read_facts, reasons_to_observe
from trimtab_sglang.fuse import Fuse
from trimtab_sglang.lease import PLAIN_NATIVE, LeaseMachine
from trimtab_sglang.policy import LeasedPolicy
from trimtab_sglang.ranks import Command, Mailbox, Order, Posted
from trimtab_sglang.recorder import Recorder
from trimtab_sglang.resets import Resets
from trimtab_sglang.settings import PluginMode, PluginSettings, SettingError, read_settings

if TYPE_CHECKING:
    from trimtab_sglang.link import Link
    from trimtab_sglang.sweep import Sweep

logger = logging.getLogger("trimtab")


class Plugin:
    """Everything of ours in one scheduler process.

    The scheduler thread owns `machine`, `recorder` and `policy`. The link thread takes from
    `recorder.ring`, puts into `mailbox`, and reads counters.

    Attributes:
        settings: The operator's settings.
        registry: Where the hooks are registered.
        decode_forward_mode: SGLang's `ForwardMode.DECODE`, compared by identity.
        machine: Chooses the mode of every decode launch.
        recorder: Records decode steps.
        mailbox: Commands from the link thread.
        fuse: Blown by the first exception of ours.
        resets: What made everything learned of the engine out of date.
        policy: The policy that SGLang's adaptive controller asks; None where there is none.
        started: Whether the link was started (or need not be).
        facts: What the scheduler is; None until it is complete.
        hooks: Which hooks are in place.
        observe_reasons: Why the plugin only reports; empty if it acts.
        scheduler: SGLang's scheduler; None until it is complete.
        link: The stream to the controller; None before the start and on ranks that do not speak.
        sweep: The start-up sweep; None before the start, and if nobody asked for one.
        candidate_bytes: Device memory that building the candidate step counts took.
    """

    def __init__(self, settings: PluginSettings, registry: host.Registry, decode_forward_mode: Any) -> None:
        self.settings = settings
        self.registry = registry
        self.decode_forward_mode = decode_forward_mode
        self.machine = LeaseMachine()
        self.recorder = Recorder()
        self.mailbox = Mailbox()
        self.fuse = Fuse(self.machine.fall_back)
        self.resets = Resets()
        self.policy: LeasedPolicy | None = None
        self.started = False
        self.facts: EngineFacts | None = None
        self.hooks: list[HookStatus] = []
        self.observe_reasons: list[str] = []
        self.scheduler: Any = None
        self.link: Link | None = None
        self.sweep: Sweep | None = None
        self.plain_mode = PLAIN_NATIVE
        self.candidate_bytes = 0
        self.digest = digest()

    @property
    def may_act(self) -> bool:
        """Whether the operator lets the plugin choose modes at all."""
        return self.settings.mode is PluginMode.ACT

    @property
    def acts(self) -> bool:
        """Whether leases are followed here."""
        return self.facts is not None and not self.observe_reasons and not self.fuse.blown

    def attach(self, scheduler: Any) -> None:
        """Read what the complete scheduler is, and decide what may be done beside it.

        Where that fails, the link still starts, on the rank that speaks as far as can be told, and says so.
        """
        self.scheduler = scheduler
        try:
            self._look_at(scheduler)
        except Exception as error:  # noqa: BLE001
            self.fuse.blow("attaching to the scheduler", error)
            self.facts = self.facts or bare_facts(scheduler)

    def _look_at(self, scheduler: Any) -> None:
        controller = getattr(getattr(scheduler, "draft_worker", None), "adaptive_controller", None)
        facts = read_facts(
            scheduler,
            candidate_steps=controller.candidate_steps if controller is not None else None,
            graph_sizes=self.policy.graph_batch_sizes if self.policy else None,
            candidate_bytes=self.candidate_bytes,
        )
        self.hooks = host.hook_status(self.registry, self.may_act)
        self.observe_reasons = reasons_to_observe(facts, self.hooks, host.is_known(facts.sglang_version))
        if not self.may_act:
            self.observe_reasons.insert(0, "TRIMTAB_MODE=observe")
        elif facts.adaptive and getattr(controller, "params", None) is not self.policy:
            self.observe_reasons.append("another plugin replaced SGLang's adaptive policy after this one")
        self.facts = facts
        host.bind_step_path(self, self.registry)
        if facts.ranks.speaks:
            self._say_hello_to_the_log(facts)

    def _say_hello_to_the_log(self, facts: EngineFacts) -> None:
        if self.observe_reasons:
            logger.warning(
                "trimtab observes beside SGLang %s: %s", facts.sglang_version, "; ".join(self.observe_reasons)
            )
        else:
            logger.info(
                "trimtab acts beside SGLang %s, steps %s, which take %s",
                facts.sglang_version,
                list(facts.candidate_steps),
                facts.candidate_cost,
            )

    def start(self) -> None:
        """Start our threads, in the process that runs the scheduler and only on the rank that speaks."""
        self.started = True
        if self.facts is not None and self.facts.ranks.speaks:
            # Not at the top: the other processes of the server load this module and need no gRPC.
            from trimtab_sglang.link import Link
            from trimtab_sglang.sweep import Sweep

            self.link = link = Link(self, self.facts)
            if self.settings.sweep:
                self.sweep = Sweep(self, self.facts, lambda: link.has_controller)
                self.sweep.start()
            link.start()

    def give_up(self, where: str, error: BaseException) -> None:
        """Blow the fuse from another thread than the scheduler's: the ranks hear of it like of any command."""
        hand_over = self._broadcast_fall_back if self.acts else None
        self.fuse.blow(where, error, hand_over)

    def _broadcast_fall_back(self, reason: str) -> None:
        self.mailbox.post(Posted(Command(Order.FALL_BACK, reason=reason)))

    def leave_behind(self) -> None:
        """This is a forked child: threads and stream are the parent's, and stay there."""
        if self.link is not None:
            _LEFT_BEHIND.append((self.link, self.sweep))
            self.link = self.sweep = None
            self.fuse.blown, self.fuse.reason = True, "a forked child of the engine"

    def post(self, posted: Posted) -> None:
        """Hand a command of the controller's to the scheduler thread, or to the sweep until that is over."""
        if self.sweep is None or not self.sweep.keep(posted):
            self.mailbox.post(posted)

    def steps_of(self, draft_tokens: int) -> int:
        """Drafts a step, from the tokens that a verify reads for each request."""
        server = self.facts.server if self.facts else {}
        if (server.get("speculative_eagle_topk") or 1) > 1:
            return min(int(server.get("speculative_num_steps") or 0), 64)
        return min(max(draft_tokens - 1, 0), 64)


# Never let go of: to take apart in a child what threads of the parent held at the fork could wait for ever.
_LEFT_BEHIND: list[Any] = []


def digest() -> str:
    """Hash of the plugin's code; ranks that differ must not act together."""
    code = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        code.update(path.read_bytes())
    return code.hexdigest()[:16]


def register() -> None:
    """SGLang's entry point: called in every process of the server, before its classes are used."""
    try:
        settings = read_settings()
        if settings.mode is PluginMode.OFF:
            return
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        registry = host.SglangRegistry()
        plugin = Plugin(settings, registry, ForwardMode.DECODE)
        host.install(plugin, registry)
        os.register_at_fork(after_in_child=plugin.leave_behind)
    except SettingError as error:
        logger.error("trimtab stays off: %s", error)
    except Exception:
        logger.exception("trimtab stays off")
