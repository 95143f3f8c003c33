"""Protobuf schemas of a registry, as descriptors: .proto texts are compiled, descriptors in base64 are taken as they are."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Final

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.disk.disk import Disk
from kafka_ordered_ops.disk.temporary import private_folder
from kafka_ordered_ops.kafka.schema_registry import RegisteredSchema, bundled_file

#: The compiler takes a tenth of a second.
_COMPILE_S: Final = 60
_COMPILED_BYTES_MAX: Final = 64 * 1024 * 1024
_ERROR_LENGTH_MAX: Final = 1_000
#: Names become paths of files, and arguments of the compiler.
_FILE_NAME: Final = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*", re.ASCII)
_FILE_NAME_LENGTH_MAX: Final = 250
_IMPORT: Final = re.compile(
    r"""\bimport\s+(?:public\s+|weak\s+|option\s+)?["']([^"']{1,250})["']"""
)
_GOOGLE: Final = re.compile(r"google/(?:protobuf|type)/\w+\.proto", re.ASCII)
_CONFLUENT: Final = re.compile(r"confluent/(?:types?/)?\w+\.proto", re.ASCII)
#: What base64 does not have, and every .proto text has.
_TEXT: Final = re.compile(r"[^A-Za-z0-9+/=\s]")


class CompilerError(ConfigError):
    """The compiler is missing, or does not run: that says nothing about a schema, and makes no value bad."""


@lru_cache(maxsize=256)
def compiled(schema: RegisteredSchema) -> bytes:
    """Return a ``FileDescriptorSet`` of a schema and of all that it imports, each file after those that it imports itself.

    Raises `ConfigError` for an invalid schema, or if the compiler is needed and not installed.
    """
    sources = dict(schema.references)
    main = "schema.proto"
    while main in sources:
        main = f"_{main}"
    sources[main] = schema.text
    files = {name: _descriptor(name, text) for name, text in sources.items()}
    known = {name: file for name, file in files.items() if file is not None}
    texts = {name: text for name, text in sources.items() if files[name] is None}
    imports = [name for text in texts.values() for name in _IMPORT.findall(text)]
    _add_bundled(known, [*imports, *_imports(known.values())])
    if texts:
        known |= _compiled_texts(texts, known)
    content: bytes = ordered_files(known, [main]).SerializeToString()
    return content


def as_descriptor(schema: RegisteredSchema) -> RegisteredSchema:
    """Return a schema as a descriptor of its own file: its messages are then known without a compiler.

    A schema that is not Protobuf, or that is invalid, is returned as it is. Raises `CompilerError`.
    """
    if schema.kind != "PROTOBUF":
        return schema
    try:
        file = main_file(schema)
    except CompilerError:
        raise
    except ConfigError:
        return schema
    text = base64.b64encode(file.SerializeToString()).decode()
    return replace(schema, text=text, references=())


def main_file(schema: RegisteredSchema) -> FileDescriptorProto:
    """Return the file of a schema, without what it imports; raises like `compiled`."""
    file = _descriptor("schema.proto", schema.text)
    return file or FileDescriptorSet.FromString(compiled(schema)).file[-1]


def ordered_files(
    files: Mapping[str, FileDescriptorProto], names: Iterable[str]
) -> FileDescriptorSet:
    """Return files and what they import, each after those that it imports.

    Raises `ConfigError` if one of them is missing, or files import one another.
    """
    result = FileDescriptorSet()
    waiting = [(name, False) for name in reversed(list(names))]
    done: dict[str, bool] = {}
    while waiting:
        name, is_ready = waiting.pop()
        if is_ready:
            done[name] = True
            added = result.file.add()
            added.CopyFrom(files[name])
            # Comments: most of a file.
            added.ClearField("source_code_info")
        elif name not in files:
            raise ConfigError(
                f"a Protobuf schema imports {shown(name)}, which is neither in the descriptor nor among the references: make "
                "the descriptor with protoc --include_imports, or register the reference"
            )
        elif not done.get(name, True):
            raise ConfigError(f"the Protobuf file {shown(name)} imports itself")
        elif name not in done:
            done[name] = False
            waiting.append((name, True))
            waiting += [(other, False) for other in reversed(files[name].dependency)]
    return result


def with_bundled(files: Iterable[FileDescriptorProto]) -> dict[str, FileDescriptorProto]:
    """Return files by their names, with those of Google that they import, in the version of the library."""
    known = {file.name: file for file in files}
    _add_bundled(known, [*known, *_imports(known.values())])
    return known


def _imports(files: Iterable[FileDescriptorProto]) -> list[str]:
    return [name for file in files for name in file.dependency]


def _add_bundled(files: dict[str, FileDescriptorProto], names: Iterable[str]) -> None:
    """Add, or put in the place of others, what comes with the libraries, and what that imports."""
    waiting = list(names)
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in seen and (file := _bundled(name)) is not None:
            files[name] = file
            waiting += file.dependency
        seen.add(name)


def _bundled(name: str) -> FileDescriptorProto | None:
    content: bytes | None = None
    if _GOOGLE.fullmatch(name):
        module = name.removesuffix(".proto").replace("/", ".") + "_pb2"
        try:
            content = import_module(module).DESCRIPTOR.serialized_pb
        except ImportError:
            return None
    elif _CONFLUENT.fullmatch(name):
        content = bundled_file(name)
    return None if content is None else FileDescriptorProto.FromString(content)


def _descriptor(name: str, text: str) -> FileDescriptorProto | None:
    """Return the file whose descriptor is registered in base64, as Confluent's client for Python does it; None for a .proto text."""
    if _TEXT.search(text):
        return None
    try:
        file = FileDescriptorProto.FromString(base64.b64decode(text))
    except (ValueError, DecodeError):
        raise ConfigError(
            f"the Protobuf schema {name} is neither a .proto text nor a descriptor in base64"
        ) from None
    file.name = name
    return file


def _compiled_texts(
    texts: Mapping[str, str], known: Mapping[str, FileDescriptorProto]
) -> dict[str, FileDescriptorProto]:
    """Compile .proto texts that import one another, and known files."""
    if find_spec("grpc_tools") is None:
        raise CompilerError(
            "the texts of Protobuf schemas need grpcio-tools: pip install 'kafka-ordered-ops[protobuf]', or give a descriptor"
        )
    for name in texts:
        if not _FILE_NAME.fullmatch(name) or len(name) > _FILE_NAME_LENGTH_MAX:
            raise ConfigError(f"a Protobuf schema has a reference with the name {shown(name)}")
    disk = Disk()
    with private_folder() as (folder, _):
        sources, output = f"{folder}/sources", f"{folder}/compiled"
        disk.make_private(sources)
        for name, text in texts.items():
            parent = f"{sources}/{name}".rpartition("/")[0]
            disk.make_folder(parent, durable=False)
            disk.write(f"{sources}/{name}", text.encode(), durable=False)
        arguments = [f"--proto_path={sources}", "--include_imports"]
        if known:
            disk.write(f"{folder}/known", _set_of(known.values()), durable=False)
            arguments.append(f"--descriptor_set_in={folder}/known")
        _run([*arguments, f"--descriptor_set_out={output}", *texts], sources)
        content = disk.read(output, _COMPILED_BYTES_MAX)
    files = FileDescriptorSet.FromString(content or b"").file
    return {file.name: file for file in files}


def _set_of(files: Iterable[FileDescriptorProto]) -> bytes:
    content: bytes = FileDescriptorSet(file=files).SerializeToString()
    return content


def _run(arguments: list[str], folder: str) -> None:
    """Run the compiler, in a process of its own: it prints its errors, and its input comes from outside."""
    # -P: no module from the current folder.
    command = [sys.executable, "-P", "-m", "grpc_tools.protoc", *arguments]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMPILE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilerError(f"the Protobuf compiler does not run: {error}") from None
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        reason = reason.replace(f"{folder}/", "")[:_ERROR_LENGTH_MAX]
        raise ConfigError(f"a Protobuf schema cannot be compiled: {reason}")
