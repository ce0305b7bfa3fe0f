"""What do our hooks cost the scheduler thread? `make bench` prints it; nothing here fails on a slow machine."""

from __future__ import annotations

import statistics

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from step_path import Bench, fresh_copy, hooked, percentile, timed
from support.daemon_process import DaemonProcess

BATCH_SIZES = (1, 32, 128, 256)


@pytest.mark.bench
@pytest.mark.timeout(300)
@pytest.mark.parametrize("batch_size", BATCH_SIZES)
def test_all_hooks_of_one_decode_step(benchmark: BenchmarkFixture, batch_size: int) -> None:
    bare = Bench(fresh_copy(), batch_size)
    with DaemonProcess() as daemon, hooked(batch_size, daemon) as ours:
        base_ns, hooked_ns = timed(bare), timed(ours)
        benchmark(ours.step)
    base = statistics.median(base_ns)
    cost = {
        "median_us": (statistics.median(hooked_ns) - base) / 1e3,
        "p99_us": (percentile(hooked_ns, 0.99) - base) / 1e3,
        "bare_median_us": base / 1e3,
        "bare_p99_us": percentile(base_ns, 0.99) / 1e3,
    }
    benchmark.extra_info.update(cost)
    print(
        f"\nhooks, batch {batch_size}: median {cost['median_us']:.2f} us, p99 {cost['p99_us']:.2f} us"
        f"  (the bare scheduler: median {cost['bare_median_us']:.2f}, p99 {cost['bare_p99_us']:.2f})"
    )
