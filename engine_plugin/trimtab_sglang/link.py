"""The stream to the controller, on a thread of its own that the scheduler never waits for.

It drains the recorder at the report interval, sends reports, checks leases and posts them to the mailbox,
and comes back by itself when the controller does. Nothing here can change a mode: only the scheduler
thread does, when it collects the mailbox.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import grpc

from trimtab_sglang import messages
from trimtab_sglang.channel import open_channel, shown
from trimtab_sglang.desk import LeaseDesk
from trimtab_sglang.facts import EngineFacts
from trimtab_sglang.guard import Guard
from trimtab_sglang.lease import Mode
from trimtab_sglang.pace import MESSAGES_PER_S, Pace
from trimtab_sglang.policy import MODES_BY_STEPS
from trimtab_sglang.quiet import QuietLog
from trimtab_sglang.recorder import Launch
from trimtab_sglang.rows import Row, RowMaker
from trimtab_sglang.sampling import sample_scheduler
from trimtab_sglang.settings import MAX_TEXT, default_engine_id
from trimtab_sglang.shared_words import disagree
from trimtabpb.v1 import control_pb2 as pb

if TYPE_CHECKING:
    from trimtab_sglang.plugin import Plugin

logger = logging.getLogger("trimtab")

CONNECT = "/trimtab.v1.ControlService/Connect"
WELCOME_TIMEOUT_S = 5.0
MIN_INTERVAL_S, MAX_INTERVAL_S = 0.1, 5.0
# How often to look whether a rank waits for a report, where reports are farther apart.
LOOK_S = 0.1
RETRY_S = (0.25, 0.5)
MAX_ROWS = 4096
MAX_ROW_BYTES = 512
MAX_BYTES = 4 << 20
# Rows are looked at this often, also where reports are due less often.
WATCH_S = 0.25
# Messages that the controller has not read yet. Beyond that rows wait, and nothing more is read from it.
MAX_UNSENT = 8
MAX_UNREAD_S = 10.0
# A flood is read slowly for so long, then its stream ends: what a dead controller left must not keep us from the next.
MAX_STRAINED_S = 1.0
CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # The largest lease has a tenth of it; to read more would hold up the scheduler.
    ("grpc.max_receive_message_length", 256 << 10),
    ("grpc.max_send_message_length", MAX_BYTES),
    ("grpc.enable_retries", 0),
)

Outbox = queue.SimpleQueue[pb.EngineMessage | None]


class Link:
    """Keeps one stream to the controller open for as long as the process lives.

    Attributes:
        has_controller: Whether a controller said Welcome on the stream that is open.
        credentials: How the connection is secured.
    """

    def __init__(self, plugin: Plugin, facts: EngineFacts, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._plugin = plugin
        self._facts = facts
        self._clock_ns = clock_ns
        port = facts.server.get("port")
        self._engine_id = plugin.settings.engine_id or default_engine_id(port if isinstance(port, int) else None)
        self._team = team = plugin.team
        self._told_disagreement = False
        own_batches = team is not None and facts.ranks.dp_attention
        self._rows = RowMaker(
            plugin.recorder,
            facts.graph_batch_sizes,
            self._mode_of,
            team.table_size_at if team is not None and own_batches else None,
        )
        self._pending: deque[Row] = deque(maxlen=MAX_ROWS)
        self._guard = Guard()
        self._resets = plugin.resets.count
        self._desk = LeaseDesk(plugin, facts.modes, plugin.settings.on_expiry)
        # Leases come in on one of our threads, and the guard speaks on the other.
        self._desk_lock = threading.Lock()
        self._log = QuietLog(logger)
        self._stop = threading.Event()
        self._stream: _Stream | None = None
        self._last_problem = ""
        self.credentials = plugin.settings.credentials
        self.has_controller = False
        self._thread = threading.Thread(target=self._run, name="trimtab-link", daemon=True)
        self._pid = os.getpid()

    def start(self) -> None:
        """Start the thread. Called once, in the process of the scheduler."""
        atexit.register(self.stop)
        self._thread.start()

    def stop(self, timeout_s: float = 1.0) -> None:
        """Say goodbye and end the thread; waits `timeout_s` at most. Nothing happens in a forked child."""
        if os.getpid() != self._pid:
            return
        atexit.unregister(self.stop)
        self._stop.set()
        if self._stream is not None:
            self._stream.finish()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _mode_of(self, draft_tokens: int | None) -> Mode:
        return self._plugin.plain_mode if draft_tokens is None else MODES_BY_STEPS[self._plugin.steps_of(draft_tokens)]

    def _run(self) -> None:
        attempt = 0
        while not self._stop.is_set():
            try:
                if attempt:
                    self._forget_rows()
                self._desk.begin()
                stream = self._stream = _Stream(self._plugin.settings.controller, self)
                attempt = 0 if stream.serve(self._stop) else attempt + 1
                if not self._stop.is_set():
                    self._say_once(stream.problem)
            except grpc.RpcError as error:
                attempt += 1
                self._say_once(f"{type(error).__name__}: {error}")
            except Exception as error:  # noqa: BLE001 - the thread goes on, to tell the controller
                attempt += 1
                self._plugin.give_up("talking to the controller", error)
            self.has_controller = False
            self._stop.wait(RETRY_S[min(attempt, len(RETRY_S) - 1)])

    def watch(self) -> pb.EngineMessage | None:
        """Drain the recorder and let the guard see the rows; what to tell the controller at once, if anything."""
        self._plugin.mailbox.look_again(self._clock_ns())
        resets = self._plugin.resets.count
        if resets != self._resets:
            self._resets = resets
            self._guard.forget()
            self._rows.forget_warm_up()
        refusal = None
        for row in self._rows.drain(MAX_ROWS):
            if len(self._pending) == MAX_ROWS:
                self._rows.dropped["unsent_row"] += 1
            self._pending.append(row)
            harm = self._guard.watch(row)
            if harm is not None:
                with self._desk_lock:
                    refusal = self._desk.drop(harm, self._clock_ns()) or refusal
            time.sleep(0)
        if refusal is None:
            return None
        self._log.warning("trimtab dropped lease %d as harmful: %s", refusal.version, refusal.detail)
        return pb.EngineMessage(ack=refusal)

    def _forget_rows(self) -> None:
        """Nobody to tell: let go of the requests that the recorded rows hold on to."""
        self.watch()
        self._rows.dropped["no_controller"] += len(self._pending)
        self._pending.clear()

    def _say_once(self, problem: str) -> None:
        if problem and problem != self._last_problem:
            self._log.warning("trimtab has no controller at %s: %s", self._plugin.settings.controller, problem)
        self._last_problem = problem

    def connected(self, controller_id: str) -> None:
        """The controller said Welcome."""
        self._log.info("trimtab is connected to controller %s as engine %s", controller_id, self._engine_id)
        self._last_problem = ""
        self.has_controller = True

    # -- what goes up ----------------------------------------------------------------------------

    def hello(self) -> pb.EngineMessage:
        """Who we are and what runs now."""
        plugin, machine = self._plugin, self._plugin.machine
        reasons = list(plugin.observe_reasons)
        if plugin.fuse.blown:
            reasons.append(f"the fuse is blown: {plugin.fuse.reason}")
        hello = messages.hello(
            self._facts, self._engine_id, plugin.settings.labels, plugin.hooks, reasons, plugin.digest
        )
        hello.topology.ranks = 1 if self._team is None else self._team.size
        hello.in_force.CopyFrom(self.in_force())
        hello.on_expiry = str(self._desk.on_expiry)
        hello.resets = plugin.resets.count
        if plugin.resets.weight_version:
            hello.speculation.weight_version = plugin.resets.weight_version[:MAX_TEXT]
        hello.last_lease_version = machine.last_version
        pin = machine.pin
        if pin is not None:
            hello.pin.CopyFrom(messages.pin_to_wire(pin, plugin.mailbox.pin_remaining_s(self._clock_ns())))
        return pb.EngineMessage(hello=hello)

    def in_force(self) -> pb.InForce:
        """What runs now and who decides about it."""
        plugin, machine = self._plugin, self._plugin.machine
        lease, pin, mode = machine.lease, machine.pin, self._last_mode()
        if plugin.fuse.blown:
            return messages.in_force(pb.InForce.SOURCE_FUSE, mode, fuse_reason=plugin.fuse.reason)
        if pin is not None:
            return messages.in_force(pb.InForce.SOURCE_PIN, mode, lease.version if lease else 0, pin.id)
        if lease is not None:
            return messages.in_force(pb.InForce.SOURCE_LEASE, mode, lease.version)
        return messages.in_force(pb.InForce.SOURCE_STOCK, mode, after_expiry=machine.standby is not None)

    def _last_mode(self) -> Mode | None:
        """The mode of the newest launch; None before the first."""
        last = self._plugin.recorder.last
        if last is None:
            return None
        launch = Launch._make(last)
        if launch.choice is not None:
            return launch.choice.mode
        return MODES_BY_STEPS[launch.stock_steps] if launch.stock_steps >= 0 else self._rows.last_mode

    def report(self, seq: int, max_rows: int = MAX_ROWS) -> pb.EngineMessage:
        """The rows watched since the last report, and what runs now."""
        plugin, now_ns = self._plugin, self._clock_ns()
        columns = pb.StepRows()
        for _ in range(min(len(self._pending), max_rows)):
            messages.append_row(columns, self._pending.popleft(), self._facts.ranks.dp_rank)
            time.sleep(0)
        running, samples = sample_scheduler(plugin.scheduler)
        messages.append_samples(columns, samples)
        report = pb.Report(
            seq=seq,
            now_ns=now_ns,
            rows=columns,
            in_force=self.in_force(),
            decode_steps=plugin.recorder.launches,
            switches=self._rows.switches,
            dropped=self._rows.dropped,
            waiting_requests=samples.get("waiting_requests", 0),
            running_requests=running,
            stale_resumes=plugin.native.gap.stale_resumes if plugin.native is not None else 0,
            resets=plugin.resets.count,
            reset_reason=plugin.resets.reason,
            weight_version=plugin.resets.weight_version[:MAX_TEXT],
        )
        if self._rows.last_result_ns:
            report.last_step_age_ns = max(0, now_ns - self._rows.last_result_ns)
        if self._team is not None:
            steps = self._team.steps()
            report.ranks.extend(messages.rank_step(step) for step in steps)
            self._told_disagreement = self._told_disagreement or disagree(steps)
        return pb.EngineMessage(report=report)

    @property
    def has_team(self) -> bool:
        """Whether other ranks act together with this one."""
        return self._team is not None

    @property
    def is_awaited(self) -> bool:
        """Whether a rank that goes under waits for the controller to hear that the ranks disagree."""
        return self._team is not None and self._team.dying and not self._told_disagreement

    # -- what comes down -------------------------------------------------------------------------

    def take_lease(self, message: pb.Lease) -> pb.EngineMessage:
        """The answer to a lease; one that is accepted is on its way to the scheduler thread."""
        if self._team is not None and self._told_disagreement and message.HasField("pin"):
            # A controller that hears of it pins the engine.
            self._team.heard()
        with self._desk_lock:
            return pb.EngineMessage(ack=self._desk.take(message, self._clock_ns()))

    def release(self, reason: str) -> None:
        """The controller lets go: back to the engine's own policy at once."""
        self._log.info("trimtab was released by the controller: %s", reason[:MAX_TEXT])
        with self._desk_lock:
            self._desk.release(reason[:MAX_TEXT])


class UnreadError(Exception):
    """The controller takes nothing in."""


class FloodError(Exception):
    """The controller says more than anybody reads."""


class _Stream:
    """One stream from Hello to its end.

    Attributes:
        problem: Why it ended, for people.
    """

    def __init__(self, address: str, link: Link) -> None:
        self.problem = ""
        self._link = link
        self._outbox: Outbox = queue.SimpleQueue()
        self._welcome = threading.Event()
        self._ended = threading.Event()
        self._no_more_reports = threading.Event()
        self._interval_s = MIN_INTERVAL_S
        self._max_rows = MAX_ROWS
        credentials = link.credentials
        self._channel = open_channel(address, credentials, CHANNEL_OPTIONS)
        # Messages are read by us: gRPC would write a traceback into the server's log for each that it cannot read.
        connect: grpc.StreamStreamMultiCallable[pb.EngineMessage, bytes] = self._channel.stream_stream(
            CONNECT, request_serializer=pb.EngineMessage.SerializeToString
        )
        self._call = connect(self._outgoing(), metadata=shown(credentials))

    def serve(self, stop: threading.Event) -> bool:
        """Send reports until the stream ends or is finished; whether the controller ever answered."""
        receiver = threading.Thread(target=self._receive, name="trimtab-link-receive", daemon=True)
        try:
            self._outbox.put(self._link.hello())
            receiver.start()
            if self._await_welcome(stop):
                self._report()
        finally:
            self._outbox.put(None)
            self._call.cancel()
            self._channel.close()
            receiver.join(1.0)
        return self._welcome.is_set()

    def _await_welcome(self, stop: threading.Event) -> bool:
        deadline = time.monotonic() + WELCOME_TIMEOUT_S
        while not (stop.is_set() or self._ended.is_set()):
            if self._welcome.wait(0.1):
                return True
            self._link.watch()
            if time.monotonic() > deadline:
                self.problem = f"no welcome within {WELCOME_TIMEOUT_S:.0f} s"
                return False
        return False

    def finish(self) -> None:
        """Say goodbye now, whenever the next report would be due."""
        self._no_more_reports.set()

    def _report(self) -> None:
        seq, due_s = 0, time.monotonic()
        while not self._over_before_next():
            refusal = self._link.watch()
            if refusal is not None:
                self._outbox.put(refusal)
            now_s = time.monotonic()
            if (now_s >= due_s or self._link.is_awaited) and self._outbox.qsize() <= MAX_UNSENT:
                seq += 1
                self._outbox.put(self._link.report(seq, self._max_rows))
                # A little early is in time: the next look is a whole wait away.
                due_s = now_s + self._interval_s - min(self._interval_s, WATCH_S) / 2
        if not self._ended.is_set():
            self._outbox.put(pb.EngineMessage(goodbye=pb.Goodbye(reason="engine stops")))
            self._ended.wait(0.2)

    def _over_before_next(self) -> bool:
        """Let the report interval pass, or less if a rank waits for a report; whether the stream is over by then."""
        deadline = time.monotonic() + self._interval_s
        while (left_s := deadline - time.monotonic()) > 0 and not self._link.is_awaited:
            if self._no_more_reports.wait(min(left_s, LOOK_S) if self._link.has_team else left_s):
                return True
        return self._no_more_reports.is_set()

    def _outgoing(self) -> Iterator[pb.EngineMessage]:
        while (message := self._outbox.get()) is not None:
            yield message

    def _receive(self) -> None:
        pace = Pace(time.monotonic)
        try:
            for message in self._call:
                self._take(pb.ControllerMessage.FromString(message))
                self._no_more_reports.wait(pace.debt_s())
                if pace.strained_s > MAX_STRAINED_S:
                    raise FloodError(f"the controller says more than {MESSAGES_PER_S:g} messages a second")
                self._await_reader()
            self.problem = self.problem or "the controller closed the stream"
        except grpc.RpcError as error:
            with contextlib.suppress(Exception):
                self.problem = self.problem or f"{error.code().name}: {error.details()}"
        except (FloodError, UnreadError) as error:
            self.problem = self.problem or str(error)
        except Exception as error:  # noqa: BLE001 - a message we cannot read ends this stream, not the thread
            self.problem = self.problem or f"{type(error).__name__}: {error}"
        finally:
            self._ended.set()
            self._no_more_reports.set()

    def _await_reader(self) -> None:
        """Answers must not pile up: a controller that does not read them is not read either."""
        deadline = time.monotonic() + MAX_UNREAD_S
        while self._outbox.qsize() > 2 * MAX_UNSENT and not self._no_more_reports.wait(0.05):
            if time.monotonic() > deadline:
                raise UnreadError(f"the controller read nothing for {MAX_UNREAD_S:.0f} s")

    def _take(self, message: pb.ControllerMessage) -> None:
        match message.WhichOneof("message"):
            case "welcome":
                interval_s = messages.seconds(message.welcome.report_interval)
                self._interval_s = min(max(interval_s, MIN_INTERVAL_S), MAX_INTERVAL_S)
                limits = message.welcome.limits
                most = limits.max_rows_per_report or MAX_ROWS, (limits.max_message_bytes or MAX_BYTES) // MAX_ROW_BYTES
                self._max_rows = max(1, min(MAX_ROWS, *most))
                self._link.connected(message.welcome.controller_id[:MAX_TEXT])
                self._welcome.set()
            case "lease":
                self._outbox.put(self._link.take_lease(message.lease))
            case "release":
                self._link.release(message.release.reason)
