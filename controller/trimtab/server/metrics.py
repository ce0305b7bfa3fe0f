"""The fleet as Prometheus metrics. The help text of each says what it means and what to do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trimtab import __version__
from trimtab.wire.modes import mode_from_wire, range_from_wire
from trimtab.wire.upstream import source_of
from trimtabpb.v1 import admin_pb2 as pb
from trimtabpb.v1 import control_pb2

STATES = ("connected", "stalled", "disconnected")


@dataclass(frozen=True, slots=True)
class Sample:
    """One engine at the time of a scrape."""

    engine: pb.Engine
    reports: int
    decisions: int
    leases: int


@dataclass(frozen=True, slots=True)
class PerEngine:
    """A metric with one value an engine; `value` None leaves the engine out."""

    name: str
    help: str
    value: Callable[[Sample], float | None]
    counter: bool = False


def _present(engine: pb.Engine, field: str) -> bool:
    return engine.measured.HasField(field)  # type: ignore[arg-type]


def _seconds(duration: Duration) -> float:
    return duration.ToNanoseconds() / 1e9


def _agreement(policy: pb.PolicyState) -> float | None:
    return policy.shadow.agreed_steps / policy.shadow.steps if policy.shadow.steps else None


PER_ENGINE = (
    PerEngine(
        "trimtab_engine_acts",
        "1 if the plugin follows leases, 0 if it only observes. At 0: `trimtab show ENGINE` says why.",
        lambda s: float(s.engine.hello.acts),
    ),
    PerEngine(
        "trimtab_engine_alarms",
        "Alarms raised now; `trimtab show ENGINE` names them. acceptance_drift: fewer drafts are accepted than hours "
        "ago on the same kind of load; restart the engine when you can. rank_divergence: restart it at once.",
        lambda s: float(len(s.engine.policy.alarms)),
    ),
    PerEngine(
        "trimtab_engine_ranks_agree",
        "1 while all ranks of an engine choose the same mode at the same step, 0 once they did not; absent for one "
        "rank. At 0 the engine is pinned and may hang or die: `trimtab show ENGINE` says what differs; restart it.",
        lambda s: float(not s.engine.rank_divergence) if s.engine.hello.topology.ranks > 1 else None,
    ),
    PerEngine(
        "trimtab_engine_canary",
        "1 where a policy on trial acts, as a canary. Compare its goodput with the others', then "
        "`trimtab policy --promote` or `--withdraw`.",
        lambda s: float(s.engine.policy.canary),
    ),
    PerEngine(
        "trimtab_engine_shadow_agreement",
        "Share of the decode steps for which the policy in shadow chose the mode that the acting policy chose; absent "
        "without one. Low: `trimtab show ENGINE` tells both decisions and what each expects.",
        lambda s: _agreement(s.engine.policy),
    ),
    PerEngine(
        "trimtab_engine_shadow_steps",
        "Decode steps since the policy in shadow began; absent without one. Judge the agreement by it.",
        lambda s: float(s.engine.policy.shadow.steps) if s.engine.policy.HasField("shadow") else None,
        counter=True,
    ),
    PerEngine(
        "trimtab_engine_steps",
        "Drafts a decode step in force; 0 is plain decoding. Compare with trimtab_engine_accepted_drafts: many "
        "drafts and few accepted for minutes means that the policy is wrong here; pin, and report it.",
        lambda s: float(s.engine.in_force.mode.steps) if s.engine.in_force.HasField("mode") else None,
    ),
    PerEngine(
        "trimtab_engine_goodput_tokens_per_second",
        "Tokens emitted a second over the last seconds. If it falls while requests wait, look at the mode and at "
        "trimtab_engine_step_seconds; if plain was better, `trimtab pin ENGINE --plain`.",
        lambda s: s.engine.measured.goodput_tps,
    ),
    PerEngine(
        "trimtab_engine_accepted_drafts",
        "Accepted drafts a request and step, the bonus token not counted; absent while nothing is drafted. A slow "
        "fall over hours at the same kind of load: restart the engine when you can, and check the draft model.",
        lambda s: s.engine.measured.accepted_drafts if _present(s.engine, "accepted_drafts") else None,
    ),
    PerEngine(
        "trimtab_engine_step_seconds",
        "Mean time of a decode step by itself over the last seconds. A rise at the same batch size and mode is the "
        "machine's or the load's doing: look at the GPU's clocks and neighbours first.",
        lambda s: s.engine.measured.step_ms / 1e3 if _present(s.engine, "step_ms") else None,
    ),
    PerEngine(
        "trimtab_engine_batch_size",
        "Mean requests a decode step over the last seconds. For reading the other figures; no action of its own.",
        lambda s: s.engine.measured.batch_size,
    ),
    PerEngine(
        "trimtab_engine_running_requests",
        "Requests that run, by the last report. If above 0 with trimtab_engines{state=\"stalled\"} above 0, the "
        "scheduler hangs: look at the engine's log.",
        lambda s: float(s.engine.measured.running_requests),
    ),
    PerEngine(
        "trimtab_engine_waiting_requests",
        "Requests that wait, by the last report. If it grows for minutes, the engine needs less load or a replica.",
        lambda s: float(s.engine.measured.waiting_requests),
    ),
    PerEngine(
        "trimtab_engine_switches",
        "Changes of mode since the engine started. More than 5 a second for minutes: set another policy, or pin.",
        lambda s: float(s.engine.measured.switches),
        counter=True,
    ),
    PerEngine(
        "trimtab_engine_stale_share",
        "Share of the requests whose draft model has not read every token and never will: they accept next to nothing. "
        "Above 0 after cold plain until those requests end; at other times `trimtab show ENGINE` says what went wrong.",
        lambda s: s.engine.measured.stale_share if _present(s.engine, "stale_share") else None,
    ),
    PerEngine(
        "trimtab_engine_stale_resumes",
        "Requests that were drafted for although their draft model has not read every token, since the engine started. "
        "It grows after cold plain only; if it grows without, look for the fuse in trimtab_engine_mode_info.",
        lambda s: float(s.engine.measured.stale_resumes),
        counter=True,
    ),
    PerEngine(
        "trimtab_engine_last_message_age_seconds",
        "Time since the engine's last message. Over 10 s and growing: the engine or its plugin is gone; look there.",
        lambda s: _seconds(s.engine.last_message_age),
    ),
    PerEngine(
        "trimtab_engine_lease_age_seconds",
        "Age of the present lease's content. High is good: the decision stands. Absent without a lease.",
        lambda s: _seconds(s.engine.lease.age) if s.engine.HasField("lease") else None,
    ),
    PerEngine(
        "trimtab_engine_lease_version",
        "Version of the present lease; it only grows. If it falls, two controllers steer one engine: stop one.",
        lambda s: float(s.engine.lease.version) if s.engine.HasField("lease") else None,
    ),
    PerEngine(
        "trimtab_engine_lease_acknowledged",
        "1 if the engine accepted the present lease. At 0 for more than two report intervals: "
        "`trimtab show ENGINE` says why it was refused.",
        lambda s: float(s.engine.lease.acknowledged) if s.engine.HasField("lease") else None,
    ),
    PerEngine(
        "trimtab_engine_reports",
        "Reports taken in. If it stands still for a connected engine, its plugin hangs: look at the engine's log.",
        lambda s: float(s.reports),
        counter=True,
    ),
    PerEngine(
        "trimtab_engine_decisions",
        "Times that the policy was asked. If it stands still while reports come in, look at the daemon's log.",
        lambda s: float(s.decisions),
        counter=True,
    ),
    PerEngine(
        "trimtab_engine_leases",
        "Leases handed to the stream, renewals included. If it stands still, the engine follows its own policy; "
        "see trimtab_engine_acts and the daemon's log.",
        lambda s: float(s.leases),
        counter=True,
    ),
)  # fmt: skip


class FleetCollector(Collector):
    """Reads all engines once a scrape.

    Args:
        read: Gives one sample an engine; called on the scraping thread.
        read_controller: Gives what holds for the controller as a whole.
    """

    def __init__(
        self, read: Callable[[], list[Sample]], read_controller: Callable[[], pb.Controller] = pb.Controller
    ) -> None:
        self._read = read
        self._read_controller = read_controller

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are not checked against other collectors, and registering reads no engine."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All metrics of this moment."""
        samples = self._read()
        yield _build_info()
        yield _engines(samples)
        yield _modes(samples)
        yield _pins(samples)
        yield _dropped(samples)
        yield _refused(samples)
        yield from _controller(self._read_controller())
        for metric in PER_ENGINE:
            yield _per_engine(metric, samples)


def _per_engine(metric: PerEngine, samples: Iterable[Sample]) -> Metric:
    make = CounterMetricFamily if metric.counter else GaugeMetricFamily
    family = make(metric.name, metric.help, labels=["engine"])
    for sample in samples:
        value = metric.value(sample)
        if value is not None:
            family.add_metric([sample.engine.engine_id], value)
    return family


def _build_info() -> Metric:
    family = GaugeMetricFamily(
        "trimtab_build_info",
        "Version of the controller. No action; it dates changes in the other figures.",
        labels=["version"],
    )
    family.add_metric([__version__], 1)
    return family


def _controller(controller: pb.Controller) -> Iterator[Metric]:
    """What belongs to no engine."""
    pins = GaugeMetricFamily(
        "trimtab_standing_pins",
        "Pins for labels or for all engines, which also hold for engines that connect later. One that nobody "
        "remembers: `trimtab show` tells its owner and reason, `trimtab unpin --label ...` or `--all` ends it.",
    )
    pins.add_metric([], len(controller.pins))
    yield pins
    refused = CounterMetricFamily(
        "trimtab_refused",
        "Calls and streams that were refused before or beside any engine, by reason. permission_denied, "
        "unauthenticated: see `audit` in the daemon's log for who; give it a role or find out what it wants. "
        "already_connected: two engines have one id. full: raise server.max_engines. call_too_fast, too_many_calls: a "
        "client polls. invalid_argument, not_found, failed_precondition: orders that could not be carried out.",
        labels=["reason"],
    )
    for reason, count in sorted(controller.refused.items()):
        refused.add_metric([reason], count)
    yield refused


def _engines(samples: Iterable[Sample]) -> Metric:
    family = GaugeMetricFamily(
        "trimtab_engines",
        "Engines by state. disconnected: the engine stopped or its plugin lost the way here, it serves on under its "
        "own policy. stalled: requests run but no decode step ends; look at that engine's log at once.",
        labels=["state"],
    )
    counts = Counter(pb.Engine.State.Name(s.engine.state).removeprefix("STATE_").lower() for s in samples)
    for state in STATES:
        family.add_metric([state], counts[state])
    return family


def _modes(samples: Iterable[Sample]) -> Metric:
    family = GaugeMetricFamily(
        "trimtab_engine_mode_info",
        "1 for the mode in force and who decided it: stock, lease, pin, fuse, or expiry (the mode set for the time "
        "after the last lease). stock or expiry for long on a connected engine: it refuses leases, see "
        "trimtab_engine_acts and trimtab_engine_refused_total. fuse: the plugin gave up until the engine restarts; "
        "`trimtab show ENGINE` says why.",
        labels=["engine", "mode", "source"],
    )
    for sample in samples:
        in_force = sample.engine.in_force
        mode = str(mode_from_wire("mode", in_force.mode)) if in_force.HasField("mode") else ""
        family.add_metric([sample.engine.engine_id, mode, source_of("in_force", in_force).value], 1)
    return family


def _pins(samples: Iterable[Sample]) -> Metric:
    family = GaugeMetricFamily(
        "trimtab_engine_pinned",
        "1 if an operator pinned the engine, with the mode or the range of steps; 0 otherwise. A pin that nobody "
        "remembers: "
        "`trimtab show ENGINE` tells its owner and reason, `trimtab unpin ENGINE` releases it.",
        labels=["engine", "mode"],
    )
    for sample in samples:
        pinned = sample.engine.HasField("pin")
        family.add_metric([sample.engine.engine_id, _held(sample.engine.pin) if pinned else ""], float(pinned))
    return family


def _held(pin: control_pb2.Pin) -> str:
    """What the pin holds, as text."""
    if pin.HasField("range"):
        return str(range_from_wire("pin.range", pin.range))
    return str(mode_from_wire("pin.mode", pin.mode))


def _by_reason(
    name: str, text: str, samples: Iterable[Sample], counts: Callable[[pb.Engine], Mapping[str, int]]
) -> Metric:
    family = CounterMetricFamily(name, text, labels=["engine", "reason"])
    for sample in samples:
        for reason, count in sorted(counts(sample.engine).items()):
            family.add_metric([sample.engine.engine_id, reason], count)
    return family


def _dropped(samples: Iterable[Sample]) -> Metric:
    return _by_reason(
        "trimtab_engine_dropped_rows",
        "Step rows and samples that the plugin left out, by reason, since the engine started. A few are normal "
        "(finished requests); if one reason grows with every step, this SGLang version does something new: report it.",
        samples,
        lambda engine: engine.measured.dropped,
    )


def _refused(samples: Iterable[Sample]) -> Metric:
    return _by_reason(
        "trimtab_engine_refused",
        "What was refused by reason: lease_* by the engine, the rest (messages, columns, rows) by the controller. "
        "lease_*: `trimtab show ENGINE` says why. Others: plugin and controller do not fit; use the same release.",
        samples,
        lambda engine: engine.refused,
    )
