"""What holds for both machines together, whatever the link does. The scripts tell single stories; this draws."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from support.two_machines import Scene
from trimtabpb.v1 import control_pb2 as pb

troubles = st.sampled_from(
    [
        "link down drop=1", "link down drop=3", "link up drop=2", "link down double=2", "link up double=3",
        "link down hold=1", "link up hold=2", "link down delay=900", "link up delay=400", "link cut", "link mend",
        "controller kill", "controller start steps=5", "controller stop", "controller hang", "controller resume",
        "policy steps=1", "policy steps=7", "pin plain_warm for=1", "pin speculate(3)", "unpin", "weights v2", "load 0",
        "load 2", "load 30", "say steps=2 version=90 nonce=90", "say steps=7 version=3 nonce=2 ttl=0",
    ]
)  # fmt: skip
courses = st.lists(st.tuples(troubles, st.sampled_from([1, 20, 300, 1100, 2500])), max_size=14)


def calm_down(scene: Scene, end: str) -> list[str]:
    """Mend everything, end as told, and let it settle."""
    sound = "delay=1 drop=0 double=0 hold=0"
    for command in ("link mend", "controller kill", "load 4", f"link down {sound}", f"link up {sound}"):
        scene.do(command)
    said = []
    for command in end.split("; "):
        said += scene.do(command)
    return said


@settings(max_examples=60, derandomize=True)
@given(courses)
def test_a_controller_that_returns_leads_within_two_seconds_and_one_that_goes_leads_no_longer_than_its_lease(
    course: list[tuple[str, int]],
) -> None:
    scene = Scene()
    scene.do("engine start")
    scene.do("controller start steps=5")
    for command, ms in course:
        scene.do(command)
        scene.do(f"run {ms}ms")
    calm_down(scene, "controller start steps=5; unpin; run 2s")
    engine = scene._the_engine()
    machine = engine.plugin.machine
    # A pin that the engine held is adopted by its next controller, and released with it.
    scene.do("unpin")
    scene.do("run 100ms")
    assert (machine.lease is not None, machine.pin) == (True, None)
    assert engine.embedded.steps_run[-1] == 5
    assert not engine.plugin.fuse.blown

    scene.do("controller kill")
    scene.do("run 2100ms")
    assert machine.lease is None
    assert engine.link.in_force().source == pb.InForce.SOURCE_STOCK
