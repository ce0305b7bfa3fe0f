"""Fills every field of every message of the protocol, sends it through bytes, prints the outcome as JSON.

Runs in the development environment and in the engine's, which have different major versions of protobuf.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import google.protobuf
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from trimtabpb.v1 import admin_pb2, admin_pb2_grpc, control_pb2, control_pb2_grpc

DEPTH = 5
# Exact in every width of float.
FRACTION = 0.75
SAMPLES: dict[int, Any] = {
    FieldDescriptor.CPPTYPE_BOOL: True,
    FieldDescriptor.CPPTYPE_DOUBLE: FRACTION,
    FieldDescriptor.CPPTYPE_ENUM: 1,
    FieldDescriptor.CPPTYPE_FLOAT: FRACTION,
    FieldDescriptor.CPPTYPE_INT32: -7,
    FieldDescriptor.CPPTYPE_INT64: -70_000_000_000,
    FieldDescriptor.CPPTYPE_STRING: "Trimtab ✓",
    FieldDescriptor.CPPTYPE_UINT32: 7,
    FieldDescriptor.CPPTYPE_UINT64: 1 << 63,
}


def filled(descriptor: Descriptor, depth: int = DEPTH) -> Any:
    """A message of this type with every field set, nested ones down to the depth."""
    message = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        value: Any
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, field.name)["key"] = SAMPLES[field.message_type.fields_by_name["value"].cpp_type]
            continue
        if field.message_type is None:
            value = SAMPLES[field.cpp_type]
        elif depth:
            value = filled(field.message_type, depth - 1)
        else:
            continue
        if _repeated(field):
            getattr(message, field.name).extend([value, value])
        elif field.message_type is None:
            setattr(message, field.name, value)
        else:
            getattr(message, field.name).CopyFrom(value)
    return message


def _repeated(field: Any) -> bool:
    """Newer versions of protobuf have dropped `label`."""
    flag = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED) if flag is None else bool(flag)


def main() -> None:
    """Round-trip all messages; the digests are the same wherever the bytes are."""
    digests = {}
    for module in (control_pb2, admin_pb2):
        for name, descriptor in module.DESCRIPTOR.message_types_by_name.items():
            message = filled(descriptor)
            data = message.SerializeToString(deterministic=True)
            if type(message).FromString(data) != message:
                raise AssertionError(f"{name} does not come back from its bytes")
            digests[name] = hashlib.sha256(data).hexdigest()
    stubs = [control_pb2_grpc.ControlServiceStub.__name__, admin_pb2_grpc.AdminServiceStub.__name__]
    print(json.dumps({"protobuf": google.protobuf.__version__, "digests": digests, "stubs": stubs}))


if __name__ == "__main__":
    main()
