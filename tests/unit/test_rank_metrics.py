"""Do the ranks of an engine agree? As Prometheus is told."""

from __future__ import annotations

import pytest

from support.admin_messages import FULL, engine
from trimtab.server.metrics import FleetCollector, Sample


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (FULL, 1.0),
        (f'{FULL} rank_divergence: "at step 7: rank 1 ran ..."', 0.0),
        (FULL.replace("ranks: 2", "ranks: 1"), None),
    ],
)
def test_ranks_agree_until_they_do_not_and_one_alone_has_nobody_to_agree_with(text: str, value: float | None) -> None:
    collector = FleetCollector(lambda: [Sample(engine(text), reports=1, decisions=1, leases=1)])
    (family,) = [family for family in collector.collect() if family.name == "trimtab_engine_ranks_agree"]
    assert [sample.value for sample in family.samples] == ([] if value is None else [value])
