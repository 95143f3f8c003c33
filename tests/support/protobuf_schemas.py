"""Descriptors and classes of Protobuf messages, from .proto texts."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message_factory import GetMessageClass


@cache
def descriptor_of(text: str, *imported: tuple[str, str]) -> bytes:
    """Return what ``protoc --include_imports`` writes for a text, which imports others by their names."""
    import grpc_tools
    from grpc_tools import protoc

    bundled = Path(grpc_tools.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        for name, content in (*imported, ("main.proto", text)):
            Path(folder, name).write_text(content)
        output = Path(folder, "output")
        arguments = [f"-I{folder}", f"-I{bundled}", "--include_imports", f"-o{output}"]
        assert protoc.main(["protoc", *arguments, "main.proto"]) == 0
        return output.read_bytes()


def class_of(descriptor: bytes, message: str) -> Any:
    """Return the official library's class of a message."""
    pool = descriptor_pool.DescriptorPool()
    for file in FileDescriptorSet.FromString(descriptor).file:
        pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(message))
