"""Protobuf on one side, domain values on the other: the controller's only translator.

Whatever comes from the wire is checked here and nowhere else. A bad row or column is left out and counted
by reason; a message that cannot be used at all raises `WireError`, which names the field.
"""

from trimtab.wire.admin import engine_message, mode_ordered, pin_duration_s
from trimtab.wire.bounds import MAX_MESSAGE_BYTES, MAX_ROWS_PER_REPORT, WireLimitError
from trimtab.wire.downstream import lease_message, read_lease, release_message, welcome_message
from trimtab.wire.modes import mode_from_wire, mode_to_wire
from trimtab.wire.rows import columns_to_rows, rows_to_columns
from trimtab.wire.upstream import cost_key_of, read_ack, read_hello, read_report

__all__ = [
    "MAX_MESSAGE_BYTES", "MAX_ROWS_PER_REPORT", "WireLimitError", "columns_to_rows", "cost_key_of", "engine_message",
    "lease_message", "mode_from_wire", "mode_ordered", "mode_to_wire", "pin_duration_s", "read_ack", "read_hello",
    "read_lease", "read_report", "release_message", "rows_to_columns", "welcome_message",
]  # fmt: skip
