"""What is read off the scheduler once a report, from the link thread: looked at, never touched."""

from __future__ import annotations

from typing import Any


def sample_scheduler(scheduler: Any) -> tuple[int, dict[str, int]]:
    """Running requests, and the sampled columns of the newest row. What cannot be read is left out.

    The scheduler thread goes on meanwhile: a figure may be a step old, and a failing read is no error.
    """
    samples: dict[str, int] = {}
    running = 0
    try:
        reqs = scheduler.running_batch.reqs
        running = len(reqs)
        samples["waiting_requests"] = len(scheduler.waiting_queue)
        samples["greedy_requests"] = sum(1 for r in reqs if r.sampling_params.top_k <= 1)
        samples["grammar_requests"] = sum(1 for r in reqs if r.grammar is not None)
        samples["lora_requests"] = sum(1 for r in reqs if getattr(r, "lora_id", None) is not None)
        total, free = scheduler.max_total_num_tokens, scheduler.token_to_kv_pool_allocator.available_size()
        samples["kv_used_tokens"] = max(0, int(total) - int(free))
    except Exception:  # noqa: BLE001 - names differ between versions, and lists change under us
        return running, samples
    return running, samples
