"""Schemas of a registry in Protobuf: .proto texts, descriptors in base64, and what they import."""

from __future__ import annotations

import base64
import sys
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from kafka_ordered_ops import ConfigError
from kafka_ordered_ops.decoding import Protobuf, decode
from kafka_ordered_ops.decoding.protobuf.schemas import as_descriptor, compiled
from kafka_ordered_ops.kafka.schema_registry import RegisteredSchema
from tests.support.encoded_values import batch_of

SYNTAX = 'syntax = "proto3";'
MONEY = f"{SYNTAX} package shop; message Money {{ int64 units = 1; }}"
SALE = f'{SYNTAX} package shop; import "a/money.proto"; message Sale {{ Money total = 1; }}'


def registered(text: str, **references: str) -> RegisteredSchema:
    """Return a schema; a reference ``a__money`` is ``a/money.proto``."""
    named = tuple((f"{name.replace('__', '/')}.proto", part) for name, part in references.items())
    return RegisteredSchema(1, "PROTOBUF", text, named)


def columns(schema: RegisteredSchema) -> Any:
    """Return the columns of its first message."""
    values = Protobuf(descriptor=compiled(schema), framing="none")
    return decode(batch_of([b""]), values=values, flatten=True).read_all().schema.names[3:]


def in_base64(text: str, name: str, **references: str) -> str:
    """Return the file of a text as Confluent's client for Python registers it."""
    files = FileDescriptorSet.FromString(compiled(registered(text, **references))).file
    file = FileDescriptorProto()
    file.CopyFrom(files[-1])
    file.name = name
    return base64.b64encode(file.SerializeToString()).decode()


@pytest.mark.parametrize("main_is_text", [True, False])
@pytest.mark.parametrize("imported_is_text", [True, False])
def test_texts_and_descriptors_import_each_other(
    main_is_text: bool, imported_is_text: bool
) -> None:
    """A registry may have both."""
    main = SALE if main_is_text else in_base64(SALE, "sale.proto", a__money=MONEY)
    imported = MONEY if imported_is_text else in_base64(MONEY, "a/money.proto")
    assert columns(registered(main, a__money=imported)) == ["total"]


@pytest.mark.parametrize(
    ("file", "field"),
    [
        ("google/protobuf/timestamp.proto", "google.protobuf.Timestamp"),
        ("google/type/date.proto", "google.type.Date"),
        ("confluent/meta.proto", "confluent.Meta"),
        ("confluent/type/decimal.proto", "confluent.type.Decimal"),
    ],
)
def test_files_of_google_and_confluent_need_no_reference(file: str, field: str) -> None:
    """They come with the libraries, for texts and for descriptors."""
    text = f'{SYNTAX} import "{file}"; message M {{ {field} v = 1; }}'
    assert columns(registered(text)) == ["v"]
    assert columns(registered(in_base64(text, "m.proto"))) == ["v"]


def test_versions_are_kept_as_descriptors_of_their_file() -> None:
    """Without what they import; what cannot be compiled stays as it is."""
    schema = registered(SALE, a__money=MONEY)
    kept = as_descriptor(schema)
    assert kept.references == ()
    file = FileDescriptorProto.FromString(base64.b64decode(kept.text))
    assert [message.name for message in file.message_type] == ["Sale"]
    for other in (registered("message"), RegisteredSchema(1, "AVRO", '"int"')):
        assert as_descriptor(other) is other


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (
            registered(f"{SYNTAX} message M {{ Strange v = 1; }}"),
            'schema.proto:1:32: "Strange" is not',
        ),
        (registered(SALE), "a/money.proto: File not found."),
        (
            registered(in_base64(SALE, "s", a__money=MONEY)),
            "imports 'a/money.proto', which is neither",
        ),
        (registered("AAAA"), "neither a .proto text nor a descriptor in base64"),
        (RegisteredSchema(1, "PROTOBUF", SALE, (("../money.proto", MONEY),)), "'../money.proto'"),
        (RegisteredSchema(1, "PROTOBUF", SALE, (("--x", MONEY),)), "the name '--x'"),
        (RegisteredSchema(1, "PROTOBUF", SALE, (("/tmp/x", MONEY),)), "the name '/tmp/x'"),
        (
            RegisteredSchema(1, "PROTOBUF", SALE, (("x" * 251, MONEY),)),
            "has a reference with the name",
        ),
        (registered(SALE, a__money=f'{MONEY} import "schema.proto";'), "File recursively imports"),
    ],
)
def test_invalid_schemas_are_named(schema: RegisteredSchema, words: str) -> None:
    """With the compiler's words, and the line."""
    with pytest.raises(ConfigError) as failure:
        compiled(schema)
    assert words in str(failure.value)


def test_a_missing_compiler_makes_no_schema_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error of the installation, and values are not bad because of it; descriptors need none."""
    text = registered(f"{SYNTAX} message Unseen {{ int32 v = 1; }}")
    descriptor = registered(in_base64(MONEY, "money.proto"))
    monkeypatch.setitem(sys.modules, "grpc_tools", None)
    for use in (compiled, as_descriptor):
        with pytest.raises(ConfigError, match=r"pip install 'kafka-ordered-ops\[protobuf\]'"):
            use(text)
    assert columns(descriptor) == ["units"]


def test_a_file_of_the_registry_is_no_program() -> None:
    """A reference may have the name of a module of the compiler."""
    program = ("grpc_tools/protoc.py", f"{SYNTAX} message X {{ }}")
    files = compiled(RegisteredSchema(1, "PROTOBUF", MONEY, (program,)))
    assert len(FileDescriptorSet.FromString(files).file) == 1
