"""The hooks of a rank that must choose what all others choose: nobody moves alone, whatever happens.

Beside the hooks of a single rank (`hooks.py`, `policy.py`) these differ in three things. A failure of ours changes
no mode on this rank: it goes on by the adopted table, and the rank that speaks makes all of them fall back at one
iteration, by the same broadcast as everything else. Every choice is noted in the words that the ranks share, so that
somebody sees if they ever disagree. And what SGLang's own policy is told depends on what all ranks adopted, never on
what this rank recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trimtab_sglang.fuse import Fuse
from trimtab_sglang.lease import LeaseMachine, Mode
from trimtab_sglang.ranks import Command, Mailbox, Order, Posted, apply
from trimtab_sglang.shared_words import DYING, GAVE_UP, HEARD, RankStep, SharedWords, disagree

if TYPE_CHECKING:
    from trimtab_sglang.plugin import Plugin
    from trimtab_sglang.policy import LeasedPolicy, StockPolicy

Hook = Callable[..., Any]

# How long ranks that have parted wait for the controller to hear of it, before they run into each other.
LAST_WORDS_S = 1.5
LAST_WORDS_POLL_S = 0.01
# What another rank writes down is there by then, on processors that do not keep the order of writes.
SETTLED_S = 0.002


class RankGaveUpError(Exception):
    """Another rank of this engine gave up."""


class Team:
    """This rank among those that act together. Owned by its scheduler thread; the link thread only reads.

    Attributes:
        rank: Its number; 0 speaks to the controller.
        words: What all ranks share.
        batch_size: Under data-parallel attention the largest batch of all ranks at the coming launch, which reads
            the table; 0 elsewhere: every rank has the same batch.
    """

    def __init__(self, rank: int, words: SharedWords, mailbox: Mailbox) -> None:
        self.rank = rank
        self.words = words
        self.batch_size = 0
        self._mailbox = mailbox

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.words.ranks

    def give_up(self, reason: str) -> None:
        """This rank's fuse blew: all ranks must fall back, at one iteration."""
        if self.rank == 0:
            self._mailbox.post(Posted(Command(Order.FALL_BACK, reason=reason)))
        else:
            self.words.give_up(self.rank, reason)

    def notice(self, fuse: Fuse) -> None:
        """On the rank that speaks: blow the fuse if any other rank gave up."""
        if not fuse.blown and self.words.marked(GAVE_UP):
            for rank, reason in self.words.given_up():
                fuse.blow(f"rank {rank}", RankGaveUpError(reason))

    # -- read by the link thread -----------------------------------------------------------------

    def steps(self) -> tuple[RankStep, ...]:
        """What every rank chose at the newest step that all have chosen, with their digests."""
        return self.words.at_same_step()

    @property
    def dying(self) -> bool:
        """Whether a rank waits for the controller to hear of a disagreement."""
        return self.words.marked(DYING)

    def heard(self) -> None:
        """The controller has heard of it."""
        self.words.mark(HEARD)

    def table_size_at(self, step: int) -> int | None:
        """The batch size that read the table at a step; None if that is too long ago."""
        return self.words.size_at(self.rank, step)


# -- choosing ------------------------------------------------------------------------------------


def steps_chooser(policy: LeasedPolicy, stock: StockPolicy, machine: LeaseMachine, fuse: Fuse, team: Team) -> Hook:
    """Chooses the steps of a launch, the same on every rank."""
    choose, stock_steps_for = mode_chooser(machine, fuse, team), stock.get_steps_for_batch

    def get_steps_for_batch(batch_size: int, *args: Any, **kwargs: Any) -> int:
        batch_size = team.batch_size or batch_size
        policy.stock_steps = steps = stock_steps_for(batch_size, *args, **kwargs)
        mode = choose(batch_size, steps)
        return steps if mode is None else mode.steps

    return get_steps_for_batch


def mode_chooser(machine: LeaseMachine, fuse: Fuse, team: Team) -> Callable[[int, int], Mode | None]:
    """Chooses the mode of a launch, `choose(batch_size, own_steps)`, the same on every rank, and notes it.

    Called once for every decode launch, with the batch size that reads the table and the steps that the engine's own
    policy wants; None lets it have them. Never raises. If another rank chose differently, the controller hears of it
    before this rank goes on.
    """
    ask, note = machine.choose, team.words.noter(team.rank)

    def choose(batch_size: int, own_steps: int) -> Mode | None:
        step, mean = machine.step, machine.mean
        try:
            mode = ask(batch_size)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the scheduler
            mode = what_others_choose(machine, batch_size, step, mean)
            fuse.blow("choosing the mode", error)
        try:
            if note(step + 1, mode, own_steps, batch_size) and not team.words.marked(DYING):
                look_again(team, step + 1)
        except Exception as error:  # noqa: BLE001
            fuse.blow("noting the mode", error)
        return mode

    return choose


def what_others_choose(machine: LeaseMachine, batch_size: int, step: int, mean: float) -> Mode | None:
    """The mode of this step although our own choice failed; `step` and `mean` are those before it."""
    try:
        return machine.choose_again(batch_size, step, mean)
    except Exception:  # noqa: BLE001 - whatever keeps failing, this rank runs what the others do
        return machine.hold(batch_size, step + 1)


def verify_watcher(policy: LeasedPolicy, stock: StockPolicy, machine: LeaseMachine) -> Hook:
    """Lets SGLang's own policy watch, the same results on every rank.

    Under a lease it moves no steps, and is told nothing while fewer drafts run than it wants. Around a change of mode
    a result can be one launch late; that is the same on every rank, where a launch's own tag might be missing on one.
    """
    stock_watch = stock.on_verify_complete

    def on_verify_complete(num_correct_drafts_per_req: list[int], *args: Any, **kwargs: Any) -> int | None:
        choice = machine.choice
        if choice is None:
            return stock_watch(num_correct_drafts_per_req, *args, **kwargs)
        if choice.mode.steps >= policy.stock_steps:
            stock_watch(num_correct_drafts_per_req, *args, **kwargs)
        return None

    return on_verify_complete


# -- commands ------------------------------------------------------------------------------------


def wrap_pull(plugin: Plugin, team: Team, original: Hook) -> Hook:
    """Append due commands to the requests of this iteration; ranks that do not speak only pass theirs on.

    With a blown fuse too, until the order to fall back has come round.
    """
    machine, fuse, mailbox, words, clock = plugin.machine, plugin.fuse, plugin.mailbox, team.words, plugin.clock
    posted, speaks = mailbox.posted, team.rank == 0

    def _pull_raw_reqs(self: Any) -> list[Any] | None:
        requests: list[Any] | None = original(self)
        if requests is None or not speaks or machine.fallen_back:
            return requests
        try:
            if words.marked(GAVE_UP):
                team.notice(fuse)
            # The clock itself, not that of the newest result: this rank may be idle while others run a lease.
            now_ns = clock()
            if not posted and now_ns < mailbox.next_deadline_ns:
                return requests
            if not plugin.started:
                plugin.start()
            return [*requests, *mailbox.collect(now_ns)]
        except Exception as error:  # noqa: BLE001
            fuse.blow("collecting commands", error)
            return [*requests, Command(Order.FALL_BACK, reason=fuse.reason)]

    return _pull_raw_reqs


def obey(commands: list[Command], machine: LeaseMachine, fuse: Fuse) -> None:
    """Carry out every command, the one that fails a second time: the other ranks carry it out as well."""
    for command in commands:
        try:
            apply(command, machine)
        except Exception as error:  # noqa: BLE001
            fuse.blow("applying commands", error)
            try:
                apply(command, machine)
            except Exception:  # noqa: BLE001 - said already, and the table in force stays
                continue


# -- the end -------------------------------------------------------------------------------------


def with_last_words(team: Team, original: Hook) -> Hook:
    """SGLang's `run_batch`; if it fails because the ranks disagree, the controller hears of it first."""

    def run_batch(self: Any, batch: Any, pp_proxy_tensors: Any = None) -> Any:
        try:
            return original(self, batch, pp_proxy_tensors)
        except Exception:
            if disagree(team.steps()) and not team.dying:
                wait_until_heard(team)
            raise

    return run_batch


def look_again(team: Team, step: int) -> None:
    """This rank seems to have parted from another at `step`: if so, wait until the controller has heard of it."""
    time.sleep(SETTLED_S)
    if team.words.parted(team.rank, step):
        wait_until_heard(team)


def wait_until_heard(team: Team) -> None:
    """Let the link report that the ranks disagree: once in the life of an engine, `LAST_WORDS_S` at most."""
    team.words.mark(DYING)
    deadline = time.monotonic() + LAST_WORDS_S
    while not team.words.marked(HEARD) and time.monotonic() < deadline:
        time.sleep(LAST_WORDS_POLL_S)
