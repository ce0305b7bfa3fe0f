"""Protobuf on one side, domain values on the other: the controller's only translator.

Whatever comes from the wire is checked here and nowhere else. A bad row or column is left out and counted
by reason; a message that cannot be used at all raises `WireError`, which names the field.
"""

from trimtab.wire.admin import engine_message
from trimtab.wire.bounds import MAX_MESSAGE_BYTES, MAX_ROWS_PER_REPORT, WireLimitError
from trimtab.wire.downstream import lease_message, read_lease, release_message, welcome_message
from trimtab.wire.modes import mode_from_wire, mode_to_wire
from trimtab.wire.orders import (
    Clocks,
    engine_asked,
    orders_message,
    parameters_ordered,
    pin_duration_s,
    read_orders,
    role_ordered,
    selector_asked,
    selector_message,
    selector_ordered,
    share_ordered,
    target_ordered,
)
from trimtab.wire.rows import columns_to_rows, rows_to_columns
from trimtab.wire.upstream import cost_key_of, read_ack, read_hello, read_report

__all__ = [
    "MAX_MESSAGE_BYTES", "MAX_ROWS_PER_REPORT", "Clocks", "WireLimitError", "columns_to_rows", "cost_key_of",
    "engine_asked", "engine_message", "lease_message", "mode_from_wire", "mode_to_wire", "orders_message",
    "parameters_ordered", "pin_duration_s", "read_ack", "read_hello", "read_lease", "read_orders", "read_report",
    "release_message", "role_ordered", "rows_to_columns", "selector_asked", "selector_message", "selector_ordered",
    "share_ordered", "target_ordered", "welcome_message",
]  # fmt: skip
