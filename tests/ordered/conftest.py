"""The worlds of ordered reads."""

from __future__ import annotations

from tests.support.both_worlds import broker as broker
from tests.support.both_worlds import memory as memory
from tests.support.both_worlds import world as world
