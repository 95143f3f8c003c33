"""The port to what decodes: all values of a column by one call.

Readers in Python decode a value at a time. A native one takes the whole column.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cache
from types import ModuleType
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.decoding.bad import BadValueError, ColumnTooLargeError
from kafka_ordered_ops.decoding.discarded import Discarded
from kafka_ordered_ops.kafka.native_module import native_module

_Array: TypeAlias = "pa.Array[Any]"
#: Why values are bad, by their rows.
Reasons: TypeAlias = Mapping[int, str]

_log = logging.getLogger(__name__)


class ColumnReader(Protocol):
    """Decodes the values of one column."""

    @property
    def arrow(self) -> pa.DataType:
        """What values become."""

    @property
    def needs_keys(self) -> bool:
        """Whether the rows of null values come from the records' keys."""

    def read_column(self, values: _Array, keys: _Array | None = None) -> tuple[_Array, Reasons]:
        """Return an array of the type `arrow`, null for bad values, and why they are bad.

        Args:
            values: bytes, ``binary`` or ``large_binary``, with any offset into their buffers. A null value stays null.
            keys: those of the same records, if they are needed.

        Raises:
            ColumnTooLargeError: the values take more than an array holds.
            RegistryError, AuthenticationError: the registry fails, or refuses the credentials.
        """


class CountingReader(ColumnReader, Protocol):
    """A reader whose values may have fields without a column."""

    def read_counted(self, values: _Array, discarded: Discarded) -> tuple[_Array, Reasons]:
        """Return what `read_column` returns, and count the values with fields that have no column."""


class ValueReader(ABC):
    """A `ColumnReader` that decodes a value at a time, in Python."""

    #: What values become.
    arrow: pa.DataType
    needs_keys = False

    @abstractmethod
    def read(self, data: bytes) -> Any:
        """Return a value as pyarrow takes it; raise `BadValueError`."""

    def read_null(self, key: bytes | None) -> Any:
        """Return what a null value becomes, with its record's key, if keys are needed; raise `BadValueError`."""
        return None

    def read_column(self, values: _Array, keys: _Array | None = None) -> tuple[_Array, Reasons]:
        """Return the decoded values, null for bad ones, and why they are bad; see `ColumnReader`."""
        rows: list[Any] = []
        reasons: dict[int, str] = {}
        for row, data in enumerate(values.to_pylist()):
            value = None
            try:
                if data is not None:
                    value = self.read(data)
                elif keys is not None:
                    value = self.read_null(keys[row].as_py())
            except BadValueError as error:
                reasons[row] = str(error)
            rows.append(value)
        array: Any = pa.array(rows, self.arrow)
        if isinstance(array, pa.ChunkedArray):
            raise ColumnTooLargeError
        return array, reasons


# --- which one -----------------------------------------------------------------------------------

#: ``python`` or ``native``, for tests of either; None for the native one where it can decode.
forced: str | None = None


class NotNativeError(Exception):
    """The native decoder cannot decode with these schemas; its text is the reason."""


def native_or_python(
    native: Callable[[ModuleType], ColumnReader], python: ColumnReader
) -> ColumnReader:
    """Return the native reader if it is installed and can decode, else the one in Python.

    Where both could, the log says why Python decodes, once for each reason.

    Args:
        native: makes the native reader from the extension; raises `NotNativeError` if it cannot decode.
        python: decodes everything.
    """
    module = native_module()
    if forced == "python" or (module is None and forced is None):
        return python
    try:
        if module is None:
            raise NotNativeError("kafka-ordered-ops-native is not installed")
        return native(module)
    except NotNativeError as error:
        python_decodes(str(error))
        return python


def python_decodes(why: str) -> None:
    """Note that Python decodes where the native decoder was to; raise `ConfigError` if that one is forced."""
    if forced is not None:
        raise ConfigError(f"the native decoder: {why}")
    _note(why)


@cache
def _note(why: str) -> None:
    _log.info("values are decoded in Python, not by the native decoder: %s", why)
