"""What a session forgets when an engine's weights, adapters or memory change under it, and what it keeps."""

from __future__ import annotations

from dataclasses import replace

from support.session_talk import Talk
from support.step_rows import step_row
from trimtab.domain import CostKey, InForce, Source, modes_of, speculate
from trimtab.policies.profile import ProfilePoint, profile_of
from trimtab.session.engine_session import SessionSettings
from trimtab.session.profiles import KeyedProfile

KEY = CostKey(model="/models/8b", weight_version="v1", device_name="NVIDIA H200")
ROWS = tuple(step_row(step=i, launch_id=i) for i in range(1, 4))


def connected(settings: SessionSettings | None = None) -> Talk:
    talk = Talk(settings)
    talk.connect(cost_key=KEY)
    talk.report(250, rows=ROWS)
    return talk


def test_when_the_count_grows_acceptance_is_forgotten_once_and_the_log_says_why() -> None:
    talk = connected()
    (policy,) = talk.policies
    assert len(policy.learned) == 3
    talk.report(500, resets=1, reset_reason="weights updated", weight_version="v2")
    assert policy.learned == []
    note = next(note for note in talk.notes if note.event == "acceptance_forgotten")
    assert note.fields == {"why": "weights updated", "weight_version": "v2"}
    talk.report(750, rows=ROWS, resets=1, reset_reason="weights updated", weight_version="v2")
    assert len(policy.learned) == 3
    assert talk.noted.count("acceptance_forgotten") == 1
    assert talk.policies == [policy]


def test_rows_that_come_with_it_are_of_both_sides_and_teach_nothing_but_are_measured() -> None:
    talk = connected()
    talk.report(500, rows=ROWS, resets=1)
    assert talk.policies[0].learned == []
    assert talk.session.window.measure().rows == 6


def test_the_lease_goes_on_meanwhile() -> None:
    talk = connected()
    version = talk.session.lease.version if talk.session.lease else 0
    talk.report(500, resets=1, in_force=InForce(Source.LEASE, speculate(3), version))
    assert talk.session.lease is not None
    assert talk.session.lease.version == version


def test_the_engine_is_known_by_its_new_weights_from_then_on() -> None:
    talk = connected()
    talk.report(500, resets=1, weight_version="v2")
    assert talk.session.info is not None
    assert talk.session.info.cost_key == replace(KEY, weight_version="v2")
    talk.report(750, resets=2)
    assert talk.session.info.cost_key.weight_version == "v2"


def test_a_reset_while_the_stream_was_down_is_seen_in_the_next_hello() -> None:
    talk = connected()
    (policy,) = talk.policies
    talk.connect(1000, cost_key=KEY, resets=1)
    assert policy.learned == []
    talk.report(1250, rows=ROWS, resets=1)
    talk.connect(2000, cost_key=KEY, resets=1)
    assert len(policy.learned) == 3


def test_a_profile_of_the_old_weights_goes_and_the_policy_with_it() -> None:
    profile = profile_of([ProfilePoint(8, dict.fromkeys(modes_of([0, 1, 3]), 5.0))])
    keyed = KeyedProfile("of v1", replace(KEY), profile)
    talk = connected(SessionSettings(profiles=(keyed,)))
    assert talk.policies[0].context.profile is profile
    talk.report(500, resets=1, weight_version="v2")
    assert [policy.context.profile for policy in talk.policies] == [profile, None]
    assert talk.session.profile.ignored == "of v1: weight_version is 'v1' there, 'v2' here"


def test_an_engine_without_a_policy_is_reset_as_well() -> None:
    talk = Talk()
    talk.unusable = "no"
    talk.connect(cost_key=KEY)
    talk.report(250, resets=3, reset_reason="LoRA adapter loaded")
    assert "acceptance_forgotten" in talk.noted
