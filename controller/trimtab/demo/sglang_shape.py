"""A scheduler in the shape of SGLang's: the names, signatures and order of calls that the plugin hooks.

Nothing is computed. The world (`StepWorld`) says how long a step takes and how many drafts each request gets
accepted; everything between is what SGLang's scheduler thread does around a decode step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, Protocol

from trimtab.policies.ema_rule import EmaRule, slots_for


class ForwardMode(Enum):
    """What a batch does."""

    EXTEND = auto()
    DECODE = auto()


class StepWorld(Protocol):
    """What happens when a batch runs. The implementation waits as long as the step takes."""

    def prefill(self, batch: ScheduleBatch) -> None:
        """Run a prefill."""

    def decode(self, batch: ScheduleBatch, steps: int) -> list[int]:
        """Run a decode step; accepted drafts of each request."""


class SamplingParams:
    """Greedy."""

    top_k = 1


class Req:
    """A request, as far as the plugin looks at it."""

    __slots__ = ("context_tokens", "finished_len", "grammar", "is_retracted", "lora_id", "output_ids", "rid")
    sampling_params = SamplingParams()

    def __init__(self, rid: str, context_tokens: int = 0) -> None:
        self.rid = rid
        self.context_tokens = context_tokens
        self.output_ids: list[int] = []
        self.finished_len: int | None = None
        self.is_retracted = False
        self.grammar = None
        self.lora_id = None


class HostLengths(list[int]):
    """Context lengths on the host, in a tensor's clothes."""

    def tolist(self) -> list[int]:
        """The lengths."""
        return list(self)


class ScheduleBatch:
    """Requests that run together."""

    __slots__ = ("extend_num_tokens", "forward_mode", "has_grammar", "reqs", "seq_lens_cpu")

    def __init__(self, reqs: list[Req], forward_mode: ForwardMode, extend_num_tokens: int | None = None) -> None:
        self.reqs = reqs
        self.forward_mode = forward_mode
        self.extend_num_tokens = extend_num_tokens
        self.has_grammar = False
        self.seq_lens_cpu = HostLengths(r.context_tokens for r in reqs)


class GenerationBatchResult:
    """What comes back of a step."""

    def __init__(self, draft_tokens: int | None = None, counts: list[int] | None = None) -> None:
        self.speculative_num_draft_tokens = draft_tokens
        self.num_correct_drafts_per_req_cpu = counts
        self.can_run_cuda_graph = True
        self.grammar_retained_tokens = None


class AdaptiveSpeculativeParams:
    """The engine's own policy: SGLang's adaptive rule."""

    def __init__(self, initial_steps: int, candidate_steps: Sequence[int]) -> None:
        self.candidate_steps = sorted(candidate_steps)
        self._initial_steps = initial_steps
        self._sizes: list[int] | None = None
        self._rule = EmaRule(slots_for(candidate_steps), initial_steps)

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        """Batches are padded to these sizes from now on."""
        self._sizes = cuda_graph_bs
        self._rule = EmaRule(slots_for(self.candidate_steps), self._initial_steps, cuda_graph_bs or ())

    def get_steps_for_batch(self, batch_size: int) -> int:
        """Steps of the next launch."""
        return self._rule.steps_for(batch_size)

    def on_verify_complete(self, num_correct_drafts_per_req: list[int], batch_size: int) -> int | None:
        """Take in accepted counts; the new steps if they changed."""
        mean = sum(num_correct_drafts_per_req) / len(num_correct_drafts_per_req)
        return self._rule.steps_for(batch_size) if self._rule.observe(mean, batch_size) else None

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        """Batch sizes to capture for this step count."""
        return self._sizes


class AdaptiveController:
    """Asks the policy and switches the worker, as SGLang's does."""

    def __init__(self, worker: DraftWorker, policy: Any) -> None:
        self.worker = worker
        self.params = policy

    @property
    def candidate_steps(self) -> list[int]:
        """Step counts that were built."""
        return list(self.params.candidate_steps)

    def init_states(self, cuda_graph_bs: list[int] | None = None) -> None:
        """Build what the candidates need."""
        self.params.set_cuda_graph_bs(cuda_graph_bs)

    def activate_step_by_batch(self, batch_size: int) -> None:
        """Before a launch."""
        self._activate(self.params.get_steps_for_batch(batch_size))

    def on_verify_complete(self, num_correct_drafts_per_req: list[int], batch_size: int) -> None:
        """After a result."""
        steps = self.params.on_verify_complete(num_correct_drafts_per_req, batch_size)
        if steps is not None:
            self._activate(steps)

    def _activate(self, steps: int) -> None:
        if steps not in self.candidate_steps:
            raise ValueError(f"Missing adaptive runtime state for steps={steps}")
        self.worker.speculative_num_steps = steps


class DraftWorker:
    """Runs decode steps at the width that the controller set."""

    def __init__(self, world: StepWorld, server_args: ServerArgs) -> None:
        self.speculative_num_steps = server_args.speculative_num_steps
        self._world = world
        policy = AdaptiveSpeculativeParams(server_args.speculative_num_steps, server_args.candidate_steps)
        self.adaptive_controller = AdaptiveController(self, policy)
        self.adaptive_controller.init_states(server_args.cuda_graph_bs_decode)

    def forward_batch_generation(self, batch: ScheduleBatch) -> GenerationBatchResult:
        """One step of the batch."""
        if batch.forward_mode is ForwardMode.EXTEND:
            self._world.prefill(batch)
            return GenerationBatchResult()
        self.adaptive_controller.activate_step_by_batch(len(batch.reqs))
        steps = self.speculative_num_steps
        return GenerationBatchResult(steps + 1, self._world.decode(batch, steps))


class ServerArgs:
    """The settings that the plugin reads, by SGLang's names."""

    def __init__(self, candidate_steps: Sequence[int], initial_steps: int, graph_batch_sizes: Sequence[int]) -> None:
        self.candidate_steps = list(candidate_steps)
        self.speculative_algorithm = "EAGLE3"
        self.speculative_eagle_topk = 1
        self.speculative_num_steps = initial_steps
        self.speculative_adaptive = True
        self.cuda_graph_bs_decode = list(graph_batch_sizes)
        self.model_path = "Llama shape, 8B"
        self.speculative_draft_model_path = "EAGLE3 shape"
        self.attention_backend = "fa3"
        self.device = "none"
        self.port = 30000
        self.tp_size = self.pp_size = self.dp_size = 1


class SchedulerRequestReceiver:
    """Takes in requests; here they come from the loop itself."""

    def recv_requests(self) -> list[Any]:
        """The requests of this iteration, as every rank gets them."""
        requests = self._pull_raw_reqs()
        return requests if requests is not None else []

    def _pull_raw_reqs(self) -> list[Any] | None:
        return []


class TokenAllocator:
    """Counts KV tokens."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self.used = 0

    def available_size(self) -> int:
        """Free tokens."""
        return self._tokens - self.used


def release_kv_cache(req: Req, tree_cache: Any = None) -> None:
    """Give back a request's slots."""


class SchedulerWeightUpdaterManager:
    """Changes weights and memory under the scheduler."""

    def update_weights_from_disk(self, recv_req: Any) -> None:
        """Read weights from files."""

    def update_weights_from_distributed(self, recv_req: Any) -> None:
        """Take weights from other processes."""

    def update_weights_from_tensor(self, recv_req: Any) -> None:
        """Take weights from a request."""

    def update_weights_from_ipc(self, recv_req: Any) -> None:
        """Take weights from another process's memory."""

    def end_weight_update(self, recv_req: Any) -> None:
        """Weights that came in parts are complete."""

    def resume_memory_occupation(self, recv_req: Any) -> None:
        """Take back the memory that was given away."""


class SchedulerBatchResultProcessor:
    """Hands results out to requests."""

    def __init__(self, model_worker: DraftWorker) -> None:
        self.model_worker = model_worker
        self.tokens = 0

    def process_batch_result_decode(self, batch: ScheduleBatch, result: GenerationBatchResult) -> None:
        """Take in a decode result."""
        counts = result.num_correct_drafts_per_req_cpu or []
        self.model_worker.adaptive_controller.on_verify_complete(counts, batch_size=len(batch.reqs))
        self.tokens += sum(counts) + len(counts)


class Scheduler:
    """SGLang's scheduler loop, one iteration at a time."""

    def __init__(self, server_args: ServerArgs, world: StepWorld, max_running_requests: int = 256) -> None:
        self.server_args = server_args
        self.max_running_requests = max_running_requests
        self.max_total_num_tokens = 500_000
        self.token_to_kv_pool_allocator = TokenAllocator(self.max_total_num_tokens)
        self.draft_worker = DraftWorker(world, server_args)
        self.init_all_cuda_graphs()
        self.request_receiver = SchedulerRequestReceiver()
        self.batch_result_processor = SchedulerBatchResultProcessor(self.draft_worker)
        self.weight_updater = SchedulerWeightUpdaterManager()
        self.waiting_queue: list[Req] = []
        self.running_batch = ScheduleBatch([], ForwardMode.DECODE)
        self.last_batch: ScheduleBatch | None = None

    def init_all_cuda_graphs(self) -> None:
        """Capture graphs."""

    def process_input_requests(self, recv_reqs: list[Any]) -> None:
        """Queue what came in; SGLang's own dispatcher fails on anything it does not know."""
        for request in recv_reqs:
            if not isinstance(request, Req):
                raise ValueError(f"Invalid object: {request}")
            self.waiting_queue.append(request)

    def load_lora_adapter(self, recv_req: Any) -> None:
        """Load an adapter from files."""

    def load_lora_adapter_from_tensors(self, recv_req: Any) -> None:
        """Load an adapter from a request."""

    def unload_lora_adapter(self, recv_req: Any) -> None:
        """Drop an adapter."""

    def run_batch(self, batch: ScheduleBatch, pp_proxy_tensors: Any = None) -> GenerationBatchResult:
        """Launch a batch."""
        return self.draft_worker.forward_batch_generation(batch)

    def iterate(self, next_batch: Callable[[Scheduler], ScheduleBatch | None]) -> None:
        """One iteration: take in requests, launch a batch, process its result."""
        self.process_input_requests(self.request_receiver.recv_requests())
        batch = next_batch(self)
        if batch is not None:
            result = self.run_batch(batch)
            if batch.forward_mode is ForwardMode.DECODE:
                self.batch_result_processor.process_batch_result_decode(batch, result)
        self.last_batch = batch
