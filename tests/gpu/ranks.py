"""Two GPUs, one choice: tensor parallelism, its price, and data-parallel attention, on a real SGLang.

    python tests/gpu/ranks.py OUT [--part all|tensor|attention|eager] [--models FOLDER] [--seconds 60] [--pairs 8]
                                  [--attention-backend fa3]

Needs two GPUs and an interpreter with SGLang (0.5.16 to 0.5.23), torch, grpcio, protobuf, numpy and msgspec; all of
Trimtab comes from this checkout. Models are shapes without weights (a 32B Llama and an 8B Qwen3, each
with an EAGLE3 draft), written to --models. Acceptance is simulated: 3 tokens a step, the same on every rank. OUT gets
`ranks.json` and the engines' logs. All of it takes up to eight minutes; the parts can be run one by one. `--cpu MODELS`
runs the same on a CPU with the tiny models of tests/sglang, to try the script.

1. **tensor**: two engines live at once on the same two GPUs, each with a third of the memory: ours (adaptive, with the
   plugin) and a stock one (fixed 3 steps, without it). First ours gets a lease with other steps every 100 ms for
   --seconds, under load of changing size: both ranks' logs of (launch, steps) must be the same. Then throughput at 3
   steps: --pairs pairs of the same requests, ours and stock in turns, there and back in each.
   Why two engines: a plugin cannot be taken out of a running process, and a start takes one to two minutes. A start for
   each of 16 runs is out of the question; one start a side would compare the GPUs at moments minutes apart. The engine
   that waits sleeps (`sleep_on_idle`) and only holds memory. The stock one runs without `--speculative-adaptive`: that
   is what a server with these fixed steps would be.
2. **attention**: one engine under data-parallel attention with TRIMTAB_DP_ATTENTION=1, a lease every 100 ms for a third
   of --seconds; the ranks' logs must be the same. If it does not run, the reason is in `ranks.json`.
3. **eager**: the same without CUDA graphs.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = [str(ROOT / part) for part in ("engine_plugin", "proto")]
sys.path[:0] = [*PLUGIN, *(str(ROOT / part) for part in ("controller", "tests", "tests/sglang"))]
# What writes down the launches; the rest of that folder is for CPUs and must not get into the way of a GPU's kernels.
LOGGERS = ROOT / "tests" / "sglang" / "shim" / "sglang_cpu"

import dummy_models  # noqa: E402
from engine_process import VOCABULARY, EngineEndedError, EngineProcess  # noqa: E402
from paired import geometric  # noqa: E402
from plugin_path import TRIMTAB, install  # noqa: E402
from step_log import Launch, read_launches  # noqa: E402
from support.scripted_controller import ScriptedController  # noqa: E402
from trimtab_sglang.lease import Lease, TableEntry, modes_of, speculate  # noqa: E402

CANDIDATES = (0, 1, 3, 5)
FIXED = 3
BETWEEN_LEASES_S = 0.1
FOREVER_S = 590.0
SEGMENT_S = 2.5
PLUGINS = TRIMTAB | {"launch_log": "sglang_cpu.launch_log:register"}
# Models by name. The large one's steps wait for the GPUs: with fewer layers the processors of the host set the pace,
# and their noise.
SHAPES = {"llama": "8b", "large": "32b", "qwen3": "qwen3"}
# Both engines measure the free memory while the other one loads: the limit of tokens is what bounds them.
LARGE_ON_GPU = {"mem_fraction_static": 0.62, "max_total_tokens": 60_000}
GPU = {
    "load_format": "dummy", "skip_tokenizer_init": True, "dtype": "bfloat16", "speculative_eagle_topk": 1,
    "sampling_backend": "pytorch", "grammar_backend": "none", "disable_radix_cache": True, "context_length": 4096,
    "cuda_graph_bs_decode": [1, 2, 4, 8, 16, 32], "disable_prefill_cuda_graph": True, "max_running_requests": 32,
    "mem_fraction_static": 0.33, "max_total_tokens": 80_000, "sleep_on_idle": True, "log_level": "info", "tp_size": 2,
    "enforce_disable_flashinfer_allreduce_fusion": True,
}  # fmt: skip
CPU = {
    "device": "cpu", "attention_backend": "intel_amx", "dtype": "float32", "mem_fraction_static": 0.5,
    "max_total_tokens": 8192, "max_running_requests": 8, "context_length": 1024, "skip_tokenizer_init": True,
    "disable_cuda_graph": True, "sleep_on_idle": True, "log_level": "info", "tp_size": 2, "speculative_eagle_topk": 1,
}  # fmt: skip
# NVLink multicast stays off: on a host whose GPUs others share too, a program that leaves it in a bad state takes them
# all out of service. Neither engine uses it, so the comparison is fair.
ON_GPU = {
    "SGLANG_SIMULATE_ACC_LEN": str(float(FIXED)), "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}  # fmt: skip
ON_CPU = {
    "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "SGLANG_CPU_OMP_THREADS_BIND": "0|1", VOCABULARY: "500",
}  # fmt: skip


class Bench:
    """What the parts share: where things are, and how engines are made."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.out: Path = options.out
        self.out.mkdir(parents=True, exist_ok=True)
        self.on_cpu = options.cpu is not None
        self.models: Path = options.cpu or options.models
        self._ports = iter(range(31_000, 39_000, 1_000))
        if not self.on_cpu:
            write_models(self.models)
        (self.models / "adaptive.json").write_text(json.dumps({"1": {"candidate_steps": list(CANDIDATES)}}))
        self._plugins = self.out / "plugins"
        install(self._plugins, PLUGINS)
        with contextlib.suppress(FileExistsError):
            (self._plugins / LOGGERS.name).symlink_to(LOGGERS)

    @property
    def requests(self) -> int:
        """Requests that run at once."""
        return 4 if self.on_cpu else 32

    def engine(self, name: str, model: str, controller: str, **arguments: Any) -> EngineProcess:
        """An engine on its way up; without a controller it is a stock one with fixed steps."""
        llama_draft = model == "noisy"
        made = {
            **(CPU if self.on_cpu else GPU),
            "model_path": str(self.models / model / "target"),
            "speculative_draft_model_path": str(self.models / model / "draft"),
            "speculative_algorithm": "EAGLE" if llama_draft else "EAGLE3",
            "port": next(self._ports),
        }
        if controller:
            made |= {"speculative_adaptive": True, "speculative_adaptive_config": str(self.models / "adaptive.json")}
        if model == "large":
            made |= LARGE_ON_GPU
        if self.options.attention_backend:
            made["attention_backend"] = self.options.attention_backend
        steps = max(CANDIDATES) if controller else FIXED
        made |= {"speculative_num_steps": steps, "speculative_num_draft_tokens": steps + 1, **arguments}
        return EngineProcess(name, self.out, made, self._environment(name, controller))

    def launches(self, name: str) -> list[list[Launch]]:
        """What both ranks wrote down."""
        return [read_launches(self.out / f"{name}.launches.{rank}") for rank in (0, 1)]

    def _environment(self, name: str, controller: str) -> dict[str, str]:
        path = os.pathsep.join([*PLUGIN, str(self._plugins), os.environ.get("PYTHONPATH", "")])
        ours = {"TRIMTAB_CONTROLLER": controller, "TRIMTAB_ENGINE_ID": name, "TRIMTAB_DP_ATTENTION": "1"}
        plugins = ["launch_log", *(["sglang_cpu"] if self.on_cpu else []), *(["trimtab"] if controller else [])]
        for left in self.out.glob(f"{name}.launches.*"):
            left.unlink()
        return {
            "PYTHONPATH": path,
            "SGLANG_PLUGINS": ",".join(plugins),
            "SGLANG_CPU_LAUNCH_LOG": str(self.out / f"{name}.launches"),
            # The other engine takes memory while this one looks how much there is.
            "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0",
            **(ours if controller else {}),
            **(ON_CPU if self.on_cpu else ON_GPU),
        }  # fmt: skip


# -- the parts -----------------------------------------------------------------------------------


def tensor(bench: Bench) -> dict[str, Any]:
    """Tensor parallelism: agreement under unrest, then the price."""
    model = "noisy" if bench.on_cpu else bench.options.shape
    with ScriptedController() as controller:
        ours = bench.engine("ours", model, controller.target)
        stock = bench.engine("stock", model, "")
        try:
            found: dict[str, Any] = {"start_s": {"ours": ours.ready(), "stock": stock.ready()}}
            hello = controller.next_hello()
            found["acts"], found["observe_reasons"] = hello.acts, list(hello.observe_reasons)
            found["agreement"] = unrest(bench, "ours", ours, controller, bench.options.seconds)
            found["throughput"] = pairs(bench, ours, stock, controller)
        finally:
            ours.stop()
            stock.stop()
    return found


def attention(bench: Bench) -> dict[str, Any]:
    """Data-parallel attention with an EAGLE3 draft: does it run, do the ranks agree?"""
    return grouped(bench, "attention")


def eager(bench: Bench) -> dict[str, Any]:
    """The same without CUDA graphs."""
    return grouped(bench, "eager", disable_cuda_graph=True)


def grouped(bench: Bench, name: str, **arguments: Any) -> dict[str, Any]:
    """Agreement under unrest, each rank with a batch of its own."""
    with ScriptedController() as controller:
        engine = bench.engine(name, "qwen3", controller.target, dp_size=2, enable_dp_attention=True, **arguments)
        try:
            found: dict[str, Any] = {"start_s": engine.ready()}
            hello = controller.next_hello()
            found["acts"], found["observe_reasons"] = hello.acts, list(hello.observe_reasons)
            found["topology"] = hello.topology.summary
            # Kernels that are compiled at their first use take the time of a hundred steps.
            engine.generate(bench.requests, 64, 32, seed=0)
            found["agreement"] = unrest(bench, name, engine, controller, bench.options.seconds / 3)
            rows = list(zip(*bench.launches(name), strict=False))
            found["launches_with_an_idle_rank"] = sum(0 in (a.requests, b.requests) for a, b in rows)
            found["launches_with_unequal_batches"] = sum(a.requests != b.requests for a, b in rows)
        finally:
            engine.stop()
    return found


def unrest(
    bench: Bench, name: str, engine: EngineProcess, controller: ScriptedController, seconds: float
) -> dict[str, Any]:
    """A lease with other steps every 100 ms under load; what the ranks' logs say afterwards."""
    drawn, version, accepted = random.Random(1), 0, 0
    engine.hold(bench.requests, 64, 48 if bench.on_cpu else 256, seed=1)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        version += 1
        few, many = drawn.sample(modes_of(CANDIDATES), 2)
        table = (TableEntry(1, few), TableEntry(max(2, bench.requests // 2), many))
        accepted += controller.lease(Lease(version, table, smoothing=1.0), ttl_s=10.0).accepted
        time.sleep(BETWEEN_LEASES_S)
    engine.release()
    first, second = bench.launches(name)
    controller.forget_reports()
    in_force = controller.next_report().in_force
    return {
        "leases": version,
        "leases_accepted": accepted,
        "launches": [len(first), len(second)],
        "identical": len(first) == len(second) and [a.steps for a in first] == [b.steps for b in second],
        "changes": sum(a.steps != b.steps for a, b in itertools.pairwise(first)),
        "steps_run": sorted({launch.steps for launch in first}),
        "in_force": str(in_force.mode).split(),
        "fuse": in_force.fuse_reason,
        "switches_in_the_log": engine.log_path.read_text(errors="replace").count("Switch adaptive runtime state"),
    }


def pairs(bench: Bench, ours: EngineProcess, stock: EngineProcess, controller: ScriptedController) -> dict[str, Any]:
    """The same requests on both, in turns; tokens a second, and the ratio with its interval."""
    lease = Lease(1_000_000, (TableEntry(1, speculate(FIXED)),), reason="fixed")
    assert controller.lease(lease, ttl_s=FOREVER_S).accepted
    engines = {"ours": ours, "stock": stock}
    tokens = 48 if bench.on_cpu else 256
    for engine in engines.values():
        engine.generate(bench.requests, 64, tokens, seed=0)
    rate = bench.requests * tokens / stock.generate(bench.requests, 64, tokens, seed=0)
    # All requests must fit into the cache at once: they are admitted by what they may generate.
    tokens = min(2000, max(tokens, round((1.0 if bench.on_cpu else SEGMENT_S) * rate / bench.requests)))
    before = len(bench.launches("ours")[0])
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for i in range(bench.options.pairs):
        took = dict.fromkeys(engines, 0.0)
        # There and back, so that what drifts meets both alike.
        for name in ("ours", "stock", "stock", "ours") if i % 2 else ("stock", "ours", "ours", "stock"):
            took[name] += engines[name].generate(bench.requests, 64, tokens, seed=i)
        for name, all_of in seconds.items():
            all_of.append(took[name])
    ran = {launch.steps for launch in bench.launches("ours")[0][before:]}
    ratios = [stock_s / ours_s for ours_s, stock_s in zip(seconds["ours"], seconds["stock"], strict=True)]
    found = geometric(ratios)
    return {
        "requests": bench.requests,
        "tokens_each": tokens,
        "tokens_per_second": {
            name: [2 * bench.requests * tokens / both for both in all_of] for name, all_of in seconds.items()
        },
        "steps_that_ours_ran": sorted(ran),
        "ratios": ratios,
        "geometric_mean": found.value,
        "interval_95": [found.low, found.high],
        "wanted": {"geometric_mean": 0.995, "lower_end": 0.985},
        "reached": found.value >= 0.995 and found.low >= 0.985,
    }


def write_models(folder: Path) -> None:
    """Configurations without weights: Llama of 8B and 32B shape and Qwen3 of 8B shape, each with an EAGLE3 draft."""
    for name, shape in SHAPES.items():
        dummy_models.make(folder / name, shape)


PARTS = {"tensor": tensor, "attention": attention, "eager": eager}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts; 0 if all that was wanted was reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--part", choices=["all", *PARTS], nargs="+", default=["all"])
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "trimtab-gpu-models")
    parser.add_argument("--cpu", type=Path, metavar="MODELS")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--shape", choices=["llama", "large"], default="large", help="of the tensor-parallel model")
    parser.add_argument("--attention-backend", default="", help="SGLang's own choice without")
    options = parser.parse_args(arguments)
    bench, results = Bench(options), dict[str, Any]()
    wanted = list(PARTS) if options.part == ["all"] else options.part
    for name in wanted:
        part = PARTS[name]
        began = time.monotonic()
        try:
            results[name] = part(bench)
        except (EngineEndedError, AssertionError) as error:
            results[name] = {"failed": f"{type(error).__name__}: {error}"}
        results[name]["wall_s"] = time.monotonic() - began
        # After each part: whoever ends us early finds what there is.
        (bench.out / "ranks.json").write_text(json.dumps(results, indent=1))
        print(json.dumps({name: results[name]}, indent=1), flush=True)
    return 0 if all(fine(result) for result in results.values()) else 1


def fine(result: Mapping[str, Any]) -> bool:
    """Whether a part showed what it was to show."""
    agreed = result.get("agreement", {}).get("identical", False)
    return bool(agreed and result.get("throughput", {}).get("reached", True))


if __name__ == "__main__":
    sys.exit(main())
