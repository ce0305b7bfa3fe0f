"""What holds for a session whatever is said to it, in whatever order."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from support.session_talk import engine
from support.step_rows import step_row
from trimtab.domain import InForce, Pin, Report, Source, check_lease, modes_of
from trimtab.policies.registry import POLICIES, policy_factory
from trimtab.session.engine_session import EngineSession, SessionSettings
from trimtab.session.events import (
    Answered,
    Connected,
    Disconnected,
    Event,
    Note,
    Pinned,
    PolicySet,
    Reported,
    SendLease,
    SendRelease,
    ShuttingDown,
    Ticked,
    Unpinned,
)

MODES = modes_of([0, 1, 3])
PINS = [Pin("p1", MODES[0]), Pin("p2", MODES[2], "latency", "kim")]
in_forces = st.builds(
    InForce,
    source=st.sampled_from(Source),
    mode=st.sampled_from([None, *MODES]),
    lease_version=st.integers(0, 20),
    pin_id=st.sampled_from(["", "p1", "p2", "x"]),
    fuse_reason=st.sampled_from(["", "KeyError: 3"]),
)
infos = st.builds(
    lambda boot, modes, acts, version, pin, remaining, now, resets: engine(
        boot_id=boot, modes=modes if acts else (), acts=acts, last_lease_version=version, pin=pin,
        pin_remaining_s=remaining, in_force=now, resets=resets,
    ),
    st.sampled_from(["b1", "b2"]), st.sampled_from([MODES, MODES[:1], modes_of([5, 7]), ()]), st.booleans(),
    st.integers(0, 20), st.sampled_from([None, *PINS]), st.sampled_from([None, 0.0, 5.0]), in_forces, st.integers(0, 3),
)  # fmt: skip
rows = st.lists(
    st.builds(
        lambda size, ms, mode: step_row(mode, size, 0, ms), st.integers(1, 8), st.sampled_from([None, 8_000_000]),
        st.sampled_from(MODES),
    ),
    max_size=4,
).map(tuple)  # fmt: skip
reports = st.builds(
    Report, seq=st.integers(1, 30), now_ns=st.integers(0, 10**10), rows=rows, in_force=in_forces,
    last_step_age_ns=st.sampled_from([None, 0, 10**12]), running_requests=st.integers(0, 4), resets=st.integers(0, 3),
    weight_version=st.sampled_from(["", "v2"]),
)  # fmt: skip
answers = st.builds(
    Answered, nonce=st.integers(0, 20), version=st.integers(0, 20), accepted=st.booleans(),
    refusal=st.sampled_from(["", "harmful", "no_state", "fuse"]),
)  # fmt: skip
policies = st.sampled_from(sorted(POLICIES)).map(lambda name: PolicySet(name, policy_factory(name, {})))
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(Connected, infos), reports.map(Reported), answers, st.just(Ticked()), st.just(Disconnected("lost")),
    st.builds(Pinned, st.sampled_from(PINS), st.sampled_from([None, 0.5, 60.0])), st.just(Unpinned()), policies,
)  # fmt: skip
courses = st.lists(st.tuples(events, st.integers(0, 3_000)), max_size=40)


@settings(max_examples=300, derandomize=True)
@given(courses, st.sampled_from(["goodput", "fixed", "ucb"]))
def test_whatever_is_said_to_a_session_what_it_sends_can_be_followed(
    course: list[tuple[Event, int]], policy: str
) -> None:
    session = EngineSession(policy, policy_factory(policy, {}), SessionSettings())
    now_ms, nonce, version = 0, 0, 0
    for event, passed_ms in course:
        # Reports and answers come on an open stream only; so the host promises.
        if isinstance(event, Reported | Answered) and not session.connected:
            continue
        now_ms += passed_ms
        for effect in session.step(event, now_ms * 1_000_000):
            assert isinstance(effect, SendLease | SendRelease | Note)
            if not isinstance(effect, SendLease):
                continue
            info = session.info
            assert info is not None
            assert session.connected
            assert info.acts
            check_lease(effect.lease)
            assert effect.nonce > nonce
            assert effect.lease.version >= version
            assert effect.lease.version > 0
            table = replace(effect.lease, pin=None)
            # A pin is let go of by a lease for its mode, or what the engine says it runs, where no policy decides.
            assert table.modes <= {*info.modes, *(pin.mode for pin in PINS), session.in_force.mode}
            assert effect.pin_remaining_s is None or effect.pin_remaining_s >= 0
            nonce, version = effect.nonce, effect.lease.version


@settings(max_examples=100, derandomize=True)
@given(courses)
def test_the_same_history_gives_the_same_decisions(course: list[tuple[Event, int]]) -> None:
    def history() -> list[str]:
        session, now_ms, said = EngineSession("goodput", policy_factory("goodput", {}), SessionSettings()), 0, []
        for event, passed_ms in course:
            if isinstance(event, Reported | Answered) and not session.connected:
                continue
            now_ms += passed_ms
            said.append(repr(session.step(event, now_ms * 1_000_000)))
        return said

    assert history() == history()


@settings(max_examples=100, derandomize=True)
@given(courses)
def test_after_its_end_a_session_sends_nothing(course: list[tuple[Event, int]]) -> None:
    session = EngineSession("fixed", policy_factory("fixed", {"steps": "3"}), SessionSettings())
    session.step(Connected(engine()), 0)
    (release,) = session.step(ShuttingDown(), 1)
    assert release == SendRelease("controller stops")
    for event, _ in course:
        if isinstance(event, Reported | Answered) and not session.connected:
            continue
        assert not [e for e in session.step(event, 2) if isinstance(e, SendLease)]
