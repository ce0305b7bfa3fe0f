"""Decode results as the scheduler thread records them, written by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from support.hooked_engine import GRAPH_SIZES, mode_of_width
from trimtab_sglang.lease import Choice
from trimtab_sglang.recorder import Launch, RawRow, Recorder
from trimtab_sglang.rows import Row, RowMaker

MS = 1_000_000


class Request:
    """A request, as far as rows look at it."""

    def __init__(self, rid: str = "r", output_ids: int = 0, finished_len: int | None = None) -> None:
        self.rid = rid
        self.output_ids = [0] * output_ids
        self.finished_len = finished_len
        self.is_retracted = False


class Lengths(list[int]):
    """Context lengths, in a tensor's clothes."""

    is_cuda = False

    def tolist(self) -> list[int]:
        """The lengths."""
        return list(self)


def requests(n: int) -> list[Request]:
    """So many requests."""
    return [Request(f"r{i}") for i in range(n)]


def launch(launch_id: int = 1, choice: Choice | None = None, stock_steps: int = 3, **fields: Any) -> Launch:
    """A launch right behind the one before it."""
    told = {"step": launch_id, "gap": False, "prefill_tokens": 0, **fields}
    return Launch(launch_id=launch_id, choice=choice, stock_steps=stock_steps, **told)


def raw_row(
    launched: Launch | None = None,
    counts: list[Any] | None = None,
    reqs: Sequence[Any] | None = None,
    result_ms: float = 10,
    **fields: Any,
) -> RawRow:
    """A result with nothing special about it."""
    launched = launched or launch()
    told: dict[str, Any] = {
        "released": (), "finished": (), "graph": True, "seq_lens": None, "retained": None, "draft_tokens": None,
        **fields,
    }  # fmt: skip
    return RawRow(
        launch=launched,
        result_ns=round(result_ms * MS),
        reqs=list(requests(len(counts or ())) if reqs is None else reqs),
        counts=counts,
        **told,
    )


def row_maker(raw: Iterable[RawRow] = (), graph_sizes: Sequence[int] = GRAPH_SIZES) -> RowMaker:
    """What makes rows of these results."""
    recorder = Recorder()
    recorder.ring.extend(tuple(one) for one in raw)
    return RowMaker(recorder, graph_sizes, mode_of_width)


def rows_of(*raw: RawRow) -> list[Row]:
    """The rows of these results."""
    return list(row_maker(raw).drain(len(raw)))
