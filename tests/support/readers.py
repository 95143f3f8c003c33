"""Both readers of records, for tests of what either promises."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

import pytest

IS_NATIVE_BUILT: Final = find_spec("kafka_ordered_ops_native") is not None
needs_native: Final = pytest.mark.skipif(
    not IS_NATIVE_BUILT, reason="the native reader is not installed: make test-native"
)
#: Values of the setting ``reader``.
READERS: Final = ("librdkafka", pytest.param("native", marks=[needs_native, pytest.mark.native]))
