"""Step rows as they come from files, checked and brought into the form of a trace.

A row is left out where a number is out of range (`COLUMN_range`), where it lacks what every row needs
(`COLUMN_missing`), or where its counts by depth contradict themselves or the sum (`counts_disagree`). In a column that
may be empty, -1 is empty as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trimtab.errors import DataError
from trimtab.replay.arrays import Ints, Mask
from trimtab.replay.traces.input_file import LeftOut
from trimtab.replay.traces.reader import mode_within_bounds
from trimtab.replay.traces.schema import ABSENT, FRACTIONS, INTEGERS, REQUIRED, SCHEMA
from trimtab.wire.bounds import MAX_REQUESTS, MAX_STEPS
from trimtab.wire.rows import MAX_EMITTED, NONE_IF_ABSENT, ZERO_IF_ABSENT
from trimtab.wire.rows import REQUIRED as REQUIRED_ON_WIRE
from trimtab_sglang.lease import MAX_DWELL_STEPS

INT32_MAX = (1 << 31) - 1
_LIMITS: dict[str, int] = {
    **REQUIRED_ON_WIRE,
    **ZERO_IF_ABSENT,
    **NONE_IF_ABSENT,
    "run": INT32_MAX,
    "accepted_tokens": MAX_EMITTED,
    "steps": 1 << 20,
    "exploration_dwell_steps": MAX_DWELL_STEPS,
}
LIMITS = {
    name: min(limit, INT32_MAX) if SCHEMA.field(name).type == pa.int32() else limit for name, limit in _LIMITS.items()
}
_FRACTION_LIMITS = {"probability": 1.0, "accepted_worst_decile": float(MAX_STEPS)}
_LIST = re.compile(r"[ \t]*\[?[ \t]*(?:-?[0-9]+(?:[ \t]*,[ \t]*-?[0-9]+)*)?[ \t]*\]?[ \t]*")
Columns = dict[str, Any]
Place = Callable[[int], str]


class RowChecks:
    """Checks the rows of one file, a stretch at a time.

    Args:
        place: What to call a line, by its number.
        left_out: Where rows are counted that are left out.
    """

    def __init__(self, place: Place, left_out: LeftOut) -> None:
        self._place = place
        self._left_out = left_out
        self._modes: dict[str, str] = {}

    def checked(self, columns: Mapping[str, Any], line: Ints) -> tuple[Columns, Ints]:
        """The rows that can be in a trace, in its types, and their lines.

        Args:
            columns: Arrow arrays by name; all integers as int64, counts as lists.
            line: Number of each row's line.

        Raises:
            DataError: A mode is unknown.
        """
        found = {name: _with_nulls(name, column) for name, column in columns.items()}
        keep = np.ones(len(line), dtype=bool)
        for reason, bad in self._faults(found, len(line)):
            lines = line[keep & bad]
            if len(lines):
                self._left_out.add(reason, int(lines[0]), len(lines))
                keep &= ~bad
        if not keep.all():
            mask = pa.array(keep)
            found, line = {name: column.filter(mask) for name, column in found.items()}, line[keep]
        found["mode"] = self._mode_names(found["mode"], line)
        return {name: column.cast(_plain_type(name)) for name, column in found.items()}, line

    def _faults(self, columns: Columns, n: int) -> list[tuple[str, Mask]]:
        missing = [
            (f"{name}_missing", _numpy(columns[name].is_null())) for name in REQUIRED if columns[name].null_count
        ]
        outside = [(f"{name}_range", _outside(name, column)) for name, column in columns.items() if name in _CHECKED]
        return [*missing, *outside, ("counts_disagree", _counts_disagree(columns, n))]

    def _mode_names(self, column: Any, line: Ints) -> Any:
        """The modes as every trace writes them."""
        found = column.dictionary_encode()
        names = []
        for name in found.dictionary.to_pylist():
            if name not in self._modes:
                at = int(np.argmax(_numpy(pc.equal(column, name))))
                self._modes[name] = str(mode_within_bounds(self._place(int(line[at])), name))
            names.append(self._modes[name])
        return pa.array(names, pa.string()).take(found.indices)


_CHECKED = frozenset(LIMITS) - {"result_ns"} | frozenset(_FRACTION_LIMITS)


def _numpy(mask: Any) -> Mask:
    return np.asarray(mask.to_numpy(zero_copy_only=False), dtype=bool)


def _plain_type(name: str) -> Any:
    kind = SCHEMA.field(name).type
    return pa.string() if pa.types.is_dictionary(kind) else kind


def _with_nulls(name: str, column: Any) -> Any:
    """The column with nulls for what is not there: -1, and what is no number."""
    if name in FRACTIONS:
        return pc.if_else(pc.or_(pc.is_nan(column), pc.equal(column, float(ABSENT))), None, column)
    if name in INTEGERS and name not in REQUIRED:
        return pc.if_else(pc.equal(column, ABSENT), None, column)
    return column


def _outside(name: str, column: Any) -> Mask:
    limit: float = _FRACTION_LIMITS.get(name, LIMITS.get(name, 0))
    return _numpy(pc.or_(pc.less(column, 0), pc.greater(column, limit)).fill_null(False))


def _counts_disagree(columns: Columns, n: int) -> Mask:
    """Whether offered and accepted have other depths, or accepted drafts are not what was summed up."""
    bad, known, total = np.zeros(n, dtype=bool), np.ones(n, dtype=bool), np.zeros(n, dtype=np.int64)
    nothing = pa.nulls(n, pa.list_(pa.int32()))
    for which in ("fresh", "stale"):
        offered, accepted = (columns.get(f"{which}_{what}", nothing) for what in ("offered", "accepted"))
        depths, others = list_lengths(offered), list_lengths(accepted)
        bad |= (depths != others) | (depths > MAX_STEPS) | _any_outside(offered) | _any_outside(accepted)
        known &= depths >= 0
        total += sum_of_lists(accepted)
    summed = columns.get("accepted_tokens")
    if summed is not None:
        said = summed.fill_null(ABSENT).to_numpy(zero_copy_only=False)
        bad |= known & (said >= 0) & (said != total)
    return bad


def list_lengths(column: Any) -> npt.NDArray[np.int64]:
    """Entries of every list; -1 for null."""
    return np.asarray(pc.list_value_length(column).fill_null(ABSENT).to_numpy(zero_copy_only=False), dtype=np.int64)


def sum_of_lists(column: Any) -> npt.NDArray[np.int64]:
    """The sum of every list; 0 for null and for an empty one."""
    values, row = column.flatten().to_numpy(zero_copy_only=False), pc.list_parent_indices(column).to_numpy()
    return np.bincount(row, weights=values, minlength=len(column)).astype(np.int64)


def _any_outside(column: Any) -> Mask:
    values, row = column.flatten().to_numpy(zero_copy_only=False), pc.list_parent_indices(column).to_numpy()
    found = np.zeros(len(column), dtype=bool)
    found[row[(values < 0) | (values > MAX_REQUESTS)]] = True
    return found


def read_lists(name: str, column: Any, first_line: int, place: Place) -> Any:
    """Lists of counts from text such as `[4, 3, 1]`; null where there is none.

    Raises:
        DataError: A text is something else.
    """
    text = pc.replace_substring_regex(column, pattern=r"^[ \t]*\[|[ \t]+|\][ \t]*$", replacement="")
    known = pc.fill_null(pc.greater(pc.binary_length(text), 0), False)
    lengths = _numpy(known) * (pc.fill_null(pc.count_substring(text, ","), 0).to_numpy(zero_copy_only=False) + 1)
    try:
        values = pc.split_pattern(text.filter(known), ",").flatten().cast(pa.int32())
    except pa.ArrowException:
        at = next((i for i, entry in enumerate(column.to_pylist()) if not _is_list(entry)), 0)
        problem = f"{name} is no list of counts: {column[at].as_py()!r}"
        raise DataError(place(first_line + at), problem) from None
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, values, mask=column.is_null())


def _is_list(text: str | None) -> bool:
    found = _LIST.fullmatch(text or "")
    return found is not None and all(abs(int(entry)) <= INT32_MAX for entry in re.findall(r"[0-9]+", found[0]))
