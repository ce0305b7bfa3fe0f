"""SGLang's own logs as rows of a trace: a row for each line about decode steps, which is an average of many steps.

A line says how many requests run, what came out a second and how many tokens a request got out of a step. Where
nothing but these steps lay between two lines (no prefill, as many requests), a step took

    step_ns = accept_len * requests / tokens_per_s

The steps that ran follow from the server's arguments and from what it says when it switches; a line that covers a
switch is left out, since nobody can tell what of it was which. Ranks of data parallelism are engines of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from trimtab.domain import PLAIN_NATIVE, EngineKey, Mode, StepFlag, speculate
from trimtab.errors import DataError
from trimtab.replay.traces import sglang_log as log
from trimtab.replay.traces.input_file import InputFile, LeftOut, Progress, part_of
from trimtab.replay.traces.schema import SCHEMA, TraceEngine
from trimtab.replay.traces.source import WHAT_THERE_IS, Block

BLOCK_ROWS = 10_000
NO_STEPS = "does not say how many drafts a step it ran with (it lacks the line with server_args): give --steps"
Row = dict[str, Any]


@dataclass
class _Server:
    """What is known of the server process at a line of the log. Owner: `SglangLog`."""

    facts: log.ServerFacts | None = None
    mode: Mode | None = None
    built: set[int] = field(default_factory=set)
    kv_capacity_tokens: int = 0
    max_running_requests: int = 0
    seen: set[Mode | None] = field(default_factory=set)
    prefilled: int = 0
    last: log.DecodeLine | None = None
    last_mode: Mode | None = None
    last_ns: int | None = None


class SglangLog:
    """One log of a server; see `TraceSource`.

    Args:
        path: The file.
        engine: Name for the engine.
        steps: Drafts a step, for a log that does not say.
        progress: See `InputFile`.
    """

    kind = "sglang_log"
    ignored_columns: tuple[str, ...] = ()

    def __init__(self, path: Path, engine: str, steps: int | None, progress: Progress) -> None:
        self.rows = 0
        self.left_out = LeftOut()
        self._path = path
        self._name = engine
        self._steps = steps
        self._progress = progress

    def blocks(self) -> Iterator[Block]:
        """All rows: those of each rank of data parallelism together."""
        ranks = self._ranks()
        for number, rank in enumerate(ranks, start=1):
            yield from self._blocks_of(rank, part_of(self._progress, number, len(ranks) + 1))
        if self.left_out.counts["mode_unknown"] == self.rows:
            raise DataError(str(self._path), NO_STEPS)

    def _ranks(self) -> list[int]:
        found = set()
        with InputFile(self._path, lambda share: self._progress(share / 2)) as file:
            for line in file.text_lines():
                if log.is_decode_line(line) and (stamp := log.stamp_of(line)):
                    found.add(stamp.dp_rank or 0)
        if not found:
            raise DataError(str(self._path), WHAT_THERE_IS)
        return sorted(found)

    def _blocks_of(self, rank: int, progress: Progress) -> Iterator[Block]:
        name, run, server, rows = str(EngineKey(self._name, rank)), 0, _Server(), list[Row]()
        with InputFile(self._path, progress) as file:
            for number, line in enumerate(file.text_lines(), start=1):
                if (facts := log.server_facts(line)) is not None:
                    if server.last is not None:
                        yield from _block(name, run, server, rows)
                        run, server, rows = run + 1, _Server(), []
                    server.facts, server.mode = facts, _first_mode(facts)
                    continue
                stamp = log.stamp_of(line)
                if stamp is None or stamp.dp_rank not in (None, rank):
                    continue
                if log.is_decode_line(line):
                    rows += self._rows_of(number, line, stamp, server)
                else:
                    _note(line, server)
                if len(rows) >= BLOCK_ROWS:
                    yield from _block(name, run, server, rows)
                    rows = []
            yield from _block(name, run, server, rows)

    def _rows_of(self, number: int, line: str, stamp: log.Stamp, server: _Server) -> list[Row]:
        """The row of a line about decode steps; none if it is left out."""
        self.rows += 1
        found = log.decode_line(line)
        reason, mode = self._judge(found, stamp, server)
        if server.last_ns is not None and stamp.wall_ns < server.last_ns:
            raise DataError(f"{self._path}:{number}", "time goes backwards: the lines are not in their order")
        server.last_ns = stamp.wall_ns
        if reason or found is None or mode is None:
            self.left_out.add(reason, number)
            rows = []
        else:
            rows = [_row(found, mode, stamp, server)]
            server.last_mode = mode
        server.last, server.prefilled, server.seen = found or server.last, 0, set()
        return rows

    def _judge(self, found: log.DecodeLine | None, stamp: log.Stamp, server: _Server) -> tuple[str, Mode | None]:
        """Why the line is left out, if it is; the mode that its steps ran in."""
        if stamp.pp_rank:
            return "pipeline_rank", None
        if found is None:
            return "unreadable", None
        mode = PLAIN_NATIVE if found.accept_len is None else server.mode
        if mode is None and self._steps is not None:
            mode = speculate(self._steps)
        if mode is None:
            return "mode_unknown", None
        if server.seen - {mode}:
            return "mixed_modes", None
        if found.accept_len is not None and not 1 <= found.accept_len <= 1 + mode.steps + 0.005:
            return "accept_len_range", None
        return "", mode


def _first_mode(facts: log.ServerFacts) -> Mode:
    return speculate(facts.steps) if facts.speculative else PLAIN_NATIVE


def _note(line: str, server: _Server) -> None:
    """What a line that is not about decode steps tells of the next one that is."""
    if (tokens := log.prefilled_tokens(line)) is not None:
        server.prefilled += max(1, tokens)
    elif (switch := log.switched_steps(line)) is not None:
        before, after = map(speculate, switch)
        server.seen |= {before, after}
        server.mode = after
    elif (steps := log.built_steps(line)) is not None:
        server.built.add(steps)
    elif (found := log.capacities(line)) is not None:
        server.kv_capacity_tokens, server.max_running_requests = found


def _row(found: log.DecodeLine, mode: Mode, stamp: log.Stamp, server: _Server) -> Row:
    before = server.last
    steps = server.facts.log_steps if server.facts else log.DEFAULT_LOG_STEPS
    accept_len = found.accept_len or 1.0
    steady = before is not None and not server.prefilled and before.running == found.running
    # Where requests ended on the way, as many ran on average as lie half way between.
    fell = before is not None and not server.prefilled and before.running > found.running
    size = (before.running + found.running + 1) // 2 if before and fell else found.running
    per_ns = found.tokens_per_s / 1e9
    return {
        "result_ns": stamp.wall_ns,
        "mode": str(mode),
        "batch_size": size,
        "emitted_tokens": round(size * steps * accept_len),
        "accepted_tokens": round(size * steps * (accept_len - 1)),
        "step_ns": round(accept_len * size / per_ns) if steady and per_ns else None,
        "wall_gap_ns": None if before is None or not per_ns else round(size * steps * accept_len / per_ns),
        "prefill_tokens": server.prefilled,
        "kv_used_tokens": found.tokens,
        "running_requests": found.running,
        "waiting_requests": found.queued,
        "flags": _flags(found, mode, server),
        "steps": steps,
    }


def _flags(found: log.DecodeLine, mode: Mode, server: _Server) -> int:
    flags = StepFlag.GRAPH if found.graph else StepFlag.NONE
    if server.last is None or server.prefilled:
        flags |= StepFlag.GAP
    if server.last_mode not in (None, mode):
        flags |= StepFlag.SWITCHED
    return int(flags)


def _block(name: str, run: int, server: _Server, rows: list[Row]) -> Iterator[Block]:
    if rows:
        columns = {key: pa.array([row[key] for row in rows], _TYPES[key]) for key in rows[0]}
        yield Block(_engine(name, run, server), columns)


_TYPES = {field.name: field.type if field.name != "mode" else pa.string() for field in SCHEMA}


def _engine(name: str, run: int, server: _Server) -> TraceEngine:
    facts = server.facts
    modes = sorted(speculate(steps) for steps in server.built | ({facts.steps} if facts and facts.adaptive else set()))
    return TraceEngine(
        name,
        run,
        modes=tuple(map(str, modes)),
        max_running_requests=server.max_running_requests or (facts.max_running_requests if facts else 0),
        initial_steps=facts.steps if facts else 0,
        start_mode=str(_first_mode(facts)) if facts else "",
        cost_key=facts.cost_key if facts else {},
        kv_capacity_tokens=server.kv_capacity_tokens,
    )
