"""What the link does with the rows that it watches: it keeps them for a report, and lets the guard see them."""

from __future__ import annotations

from support.hooked_engine import one_mode_lease
from support.unlinked_engine import Unlinked
from trimtab_sglang import link as link_module
from trimtab_sglang.lease import PLAIN_WARM, Mode, speculate
from trimtab_sglang.messages import mode_to_wire
from trimtabpb.v1 import control_pb2 as pb


def lease(version: int, nonce: int, mode: Mode) -> pb.Lease:
    message = pb.Lease(version=version, nonce=nonce, smoothing=1.0)
    message.ttl.seconds = 600
    message.table.add(min_batch_size=1, mode=mode_to_wire(mode), probability=1.0)
    return message


def test_a_harmful_lease_is_dropped_and_refused_without_being_asked() -> None:
    unlinked = Unlinked()
    unlinked.engine.admit(2)
    unlinked.engine.post(one_mode_lease(PLAIN_WARM, 1))
    unlinked.decode(20, step_ms=10, accepted=0)
    assert unlinked.link.take_lease(lease(2, 7, speculate(7))).ack.accepted
    said = []
    for _ in range(12):
        unlinked.decode(10, step_ms=25, accepted=0)
        said.append(unlinked.link.watch())

    (refusal,) = [message.ack for message in said if message is not None]
    assert (refusal.nonce, refusal.version, refusal.refusal) == (7, 2, pb.REFUSAL_HARMFUL)
    assert refusal.detail.startswith("0.4")
    assert refusal.detail.endswith("drafting leases are refused for 5 s")
    assert unlinked.engine.plugin.machine.lease is None
    assert unlinked.report().in_force.source == pb.InForce.SOURCE_STOCK
    assert unlinked.link.take_lease(lease(3, 8, speculate(1))).ack.refusal == pb.REFUSAL_HARMFUL
    assert unlinked.link.take_lease(lease(3, 9, PLAIN_WARM)).ack.accepted


def test_rows_wait_for_the_next_report_and_the_oldest_fall_out_if_none_comes() -> None:
    unlinked = Unlinked()
    unlinked.engine.admit(2)
    for _ in range(3):
        unlinked.decode(2000, step_ms=10, accepted=1)
        unlinked.link.watch()
    report = unlinked.report()
    assert list(report.rows.launch_id) == list(range(6001 - link_module.MAX_ROWS, 6001))
    assert report.dropped["unsent_row"] == 6000 - link_module.MAX_ROWS


def test_a_report_has_no_more_rows_than_the_controller_wants() -> None:
    unlinked = Unlinked()
    unlinked.engine.admit(2)
    unlinked.decode(25, step_ms=10, accepted=1)
    unlinked.link.watch()
    sizes = [len(unlinked.link.report(seq, max_rows=10).report.rows.step) for seq in (1, 2, 3, 4)]
    assert sizes == [10, 10, 5, 0]
