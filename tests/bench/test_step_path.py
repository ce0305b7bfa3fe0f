"""What do our hooks cost the scheduler thread? `make bench` prints it; nothing here fails on a slow machine."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from step_path import Bench, hooked, percentile, timed
from support.daemon_process import DaemonProcess
from support.hooked_engine import fresh_copy

BATCH_SIZES = (1, 32, 128, 256)


@pytest.mark.bench
@pytest.mark.timeout(300)
@pytest.mark.parametrize("batch_size", BATCH_SIZES)
def test_all_hooks_of_one_decode_step(benchmark: BenchmarkFixture, batch_size: int) -> None:
    with DaemonProcess() as daemon, hooked(batch_size, daemon) as ours:
        bare_ns, hooked_ns = timed(Bench(fresh_copy(), batch_size), ours)
        benchmark(ours.step)
    median, p99 = (
        (percentile(hooked_ns, share) - percentile(bare_ns, share), percentile(bare_ns, share)) for share in (0.5, 0.99)
    )
    benchmark.extra_info.update(hooks_median_us=median[0] / 1e3, hooks_p99_us=p99[0] / 1e3)
    print(
        f"\nhooks, batch {batch_size}: median {median[0] / 1e3:.2f} us, p99 {p99[0] / 1e3:.2f} us,"
        f" on top of the bare scheduler's {median[1] / 1e3:.2f} and {p99[1] / 1e3:.2f} us"
    )
