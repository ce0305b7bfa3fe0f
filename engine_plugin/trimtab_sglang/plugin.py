"""SGLang's entry point to Trimtab, and the one object a scheduler process keeps of it."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab_sglang import host
from trimtab_sglang.facts import (
    EngineFacts,
    HookStatus,
    bare_facts,
    in_pipeline,
    read_facts,
    reasons_to_observe,
    server_settings,
)
from trimtab_sglang.fuse import Fuse
from trimtab_sglang.handshake import World, shake_hands, torch_world
from trimtab_sglang.lease import PLAIN_NATIVE, LeaseMachine
from trimtab_sglang.native_plain import NativePlain
from trimtab_sglang.plain_offer import PlainOffer, offer, why_not_cold
from trimtab_sglang.plain_start import DeviceRounds, PlainStart, can_skip_draft_extend
from trimtab_sglang.policy import FixedSteps, LeasedPolicy
from trimtab_sglang.ranks import Command, Mailbox, Order, Posted
from trimtab_sglang.recorder import Recorder
from trimtab_sglang.resets import Resets
from trimtab_sglang.settings import PluginMode, PluginSettings, SettingError, read_settings
from trimtab_sglang.together import Team
from trimtab_sglang.topology import describe

if TYPE_CHECKING:
    from collections.abc import Callable

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
        world: Finds the ranks that take part in one another's collectives.
        clock: Monotonic, in ns; where ranks act together only that of rank 0 is looked at.
        team: This rank among those that act together; None for one that is alone, and where they cannot.
        plain: What native plain runs on, as built while the server started.
        native: Runs native and cold plain; None where neither is offered.
        candidate_bytes: Device memory that building the candidate step counts took.
    """

    def __init__(self, settings: PluginSettings, registry: host.Registry, decode_forward_mode: Any) -> None:
        self.settings = settings
        self.registry = registry
        self.decode_forward_mode = decode_forward_mode
        self.machine = LeaseMachine()
        self.recorder = Recorder()
        self.mailbox = Mailbox()
        self.fuse = Fuse(self._give_up)
        self.resets = Resets()
        self.policy: LeasedPolicy | None = None
        self.started = False
        self.facts: EngineFacts | None = None
        self.hooks: list[HookStatus] = []
        self.observe_reasons: list[str] = []
        self.scheduler: Any = None
        self.link: Link | None = None
        self.sweep: Sweep | None = None
        self.plain = PlainStart()
        self.native: NativePlain | None = None
        self.plain_mode = PLAIN_NATIVE
        self.candidate_bytes = 0
        self.digest = digest()
        self.world: Callable[[], World | None] = torch_world
        self.clock: Callable[[], int] = time.monotonic_ns
        self.team: Team | None = None
        self._met = False
        self._apart = ""

    @property
    def may_act(self) -> bool:
        """Whether the operator lets the plugin choose modes at all."""
        return self.settings.mode is PluginMode.ACT

    @property
    def acts(self) -> bool:
        """Whether leases are followed here."""
        return self.facts is not None and not self.observe_reasons and not self.fuse.blown

    @property
    def captures_every_size(self) -> bool:
        """Whether leases will run any candidate at any batch size here: then each needs graphs of every size."""
        return self.may_act and not self._apart

    def meet(self) -> Team | None:
        """Find out, once, whether the other ranks run this plugin too, and share memory with them if so.

        Called at start-up, before anything is captured: that must be the same on all ranks as well.
        """
        if not self._met:
            self._met = True
            # In a pipeline only the last stage has a policy: the first one would be waited for in vain.
            world = self.world() if self.may_act and not in_pipeline() else None
            if world is not None:
                outcome = shake_hands(world, self.digest, self._problem())
                self._apart = outcome.problem
                self.team = Team(world.rank, outcome.words, self.mailbox) if outcome.words is not None else None
        return self.team

    def _problem(self) -> str:
        """Why this rank could not act, as far as that is known before its scheduler is complete."""
        missing = [hook for hook in host.hook_status(self.registry, self.settings) if not hook.applied]
        return f"hook not in place: {missing[0].target}: {missing[0].reason}" if missing else ""

    def _give_up(self, reason: str) -> None:
        """The fuse blew. Alone: fall back at once; among others: nobody does so by himself."""
        if self.team is None:
            self.machine.fall_back(reason)
        else:
            self.team.give_up(reason)

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
            plain=self._plain_offer(scheduler, controller),
            candidate_bytes=self.candidate_bytes,
        )
        self.hooks = host.hook_status(self.registry, self.settings)
        self.observe_reasons = reasons_to_observe(
            facts, self.hooks, host.is_known(facts.sglang_version), self.settings.dp_attention
        )
        if not self.may_act:
            self.observe_reasons.insert(0, "TRIMTAB_MODE=observe")
        elif facts.adaptive and getattr(controller, "params", None) is not self.policy:
            self.observe_reasons.append("another plugin replaced SGLang's adaptive policy after this one")
        if self._met or not self.observe_reasons:
            self.meet()
            self.observe_reasons += [self._apart] if self._apart else []
        self.facts = facts
        if not facts.ranks.speaks:
            self.recorder.keep_nothing()
        if self.acts and facts.plain.modes:
            self._offer_plain(scheduler.draft_worker, facts)
        host.bind_step_path(self, self.registry)
        if facts.ranks.speaks:
            self._say_hello_to_the_log(facts)

    def _plain_offer(self, scheduler: Any, controller: Any) -> PlainOffer:
        server = server_settings(scheduler.server_args)
        zero_steps = controller is not None and 0 in controller.candidate_steps
        return offer(self.plain.refusal, why_not_cold(server, zero_steps, can_skip_draft_extend()), self.plain.memory)

    def _offer_plain(self, worker: Any, facts: EngineFacts) -> None:
        """Make native and cold plain ready to be asked for."""
        policy = self.policy if facts.adaptive else LeasedPolicy(FixedSteps(facts.fixed_steps), self)
        if policy is not None:
            rounds = self.plain.rounds or DeviceRounds(worker)
            self.native = NativePlain(
                worker, rounds, policy, self.machine, self.recorder, self.fuse, self.decode_forward_mode,
                always=not facts.adaptive or rounds.skips_by_default,
            )  # fmt: skip
            self.native.follow()

    def _say_hello_to_the_log(self, facts: EngineFacts) -> None:
        if self.observe_reasons:
            logger.warning(
                "trimtab observes beside SGLang %s (%s): %s",
                facts.sglang_version, describe(facts.ranks), "; ".join(self.observe_reasons),
            )  # fmt: skip
        else:
            logger.info(
                "trimtab acts beside SGLang %s, steps %s, which take %s (%s)",
                facts.sglang_version, list(facts.candidate_steps), facts.candidate_cost, describe(facts.ranks),
            )  # fmt: skip

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
