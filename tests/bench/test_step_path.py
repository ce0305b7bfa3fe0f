"""What do our hooks cost the scheduler thread? `make bench` prints it; nothing here fails on a slow machine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from step_path import Bench, hooked, percentile, timed
from support.daemon_process import DaemonProcess
from support.hooked_engine import fresh_copy

BATCH_SIZES = (1, 32, 128, 256)


@pytest.mark.bench
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("batch_size", "ranks"), [*((size, 1) for size in BATCH_SIZES), (32, 2), (32, 8)])
def test_all_hooks_of_one_decode_step(benchmark: BenchmarkFixture, batch_size: int, ranks: int) -> None:
    with DaemonProcess() as daemon, hooked(batch_size, daemon, ranks) as ours:
        without, with_hooks = timed(Bench(fresh_copy(), batch_size), ours)
        benchmark(ours.step)
    median, p99 = (difference_us(with_hooks.steady_ns, without.steady_ns, share) for share in (0.5, 0.99))
    cold = difference_us(with_hooks.cold_ns, without.cold_ns, 0.5)
    benchmark.extra_info.update(hooks_median_us=median, hooks_p99_us=p99, hooks_cold_median_us=cold)
    print(
        f"\nhooks, batch {batch_size}, ranks {ranks}: median {median:.2f} us, p99 {p99:.2f} us"
        f" (the bare scheduler {percentile(without.steady_ns, 0.5) / 1e3:.2f} and"
        f" {percentile(without.steady_ns, 0.99) / 1e3:.2f} us);"
        f" first step after a pause {cold:.1f} us (bare {percentile(without.cold_ns, 0.5) / 1e3:.1f} us)"
    )


def difference_us(hooked_ns: Sequence[int], bare_ns: Sequence[int], share: float) -> float:
    """What the hooks add at a percentile."""
    return (percentile(hooked_ns, share) - percentile(bare_ns, share)) / 1e3
