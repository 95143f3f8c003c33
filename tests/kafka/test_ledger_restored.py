"""A record of the ledger that another program wrote over: the error names it, and one command puts back what was there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from kafka_ordered_ops import (
    Committed,
    ConfigError,
    LedgerCorruptError,
    LedgerError,
    LedgerVersionError,
)
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.cli_support import cli
from tests.support.ledger_support import Headers, key_of, place_of, put, service, stored
from tests.support.ledger_support import begun as begun
from tests.support.ledger_support import ledger as ledger
from tests.support.ledger_support import windows as windows
from tests.support.logs import read_plan
from tests.support.windows_support import before, offsets_of

#: The command that an error names: the group and the offset.
CURE = re.compile(r"`windows restore-record --group (\S+) (\d+)`")


def newer(value: bytes) -> bytes:
    """A record of a version that no package has written."""
    return json.dumps({**json.loads(value), "version": 1_000}).encode()


def newer_plan(value: bytes) -> bytes:
    """The same, further inside."""
    fields = json.loads(value)
    fields["plan"]["version"] = 1_000
    return json.dumps(fields).encode()


def cut(value: bytes) -> bytes:
    """A damaged record."""
    return value[: len(value) // 2]


def forged(
    bootstrap: str, begun: OrderedWindows, ledger: str, kind: str, name: str, value: bytes | None
) -> None:
    """Another program writes over a record, or writes one that was not there."""
    place, key = place_of(ledger, begun.group_id), key_of(begun.group_id, kind, name)
    headers: Headers = {"koo-generation": "1000", "koo-parts": "1"}
    put(bootstrap, place, key, value, headers)


def told(error: LedgerError, group_id: str, ledger: str, kind: str) -> int:
    """The offset of the record that an error names, and its cure."""
    text = str(error)
    assert group_id in text
    found = re.search(
        rf"the {kind} record '.*' at offset (\d+) of the ledger {ledger}\[\d+\]", text
    )
    cure = CURE.search(text)
    assert found is not None
    assert cure is not None
    assert cure.groups() == (group_id, found[1])
    return int(found[1])


@pytest.mark.slow
@pytest.mark.parametrize("forge", [newer, cut])
@pytest.mark.parametrize("times", [1, 3])
def test_a_forged_state_is_restored_and_nothing_is_lost(
    bootstrap: str,
    begun: OrderedWindows,
    orders: str,
    ledger: str,
    forge: Callable[[bytes], bytes],
    times: int,
) -> None:
    """However often it was written over: windows that were open are still open, and each record is delivered once."""
    place, key = place_of(ledger, begun.group_id), key_of(begun.group_id, "state", "")
    there = stored(bootstrap, place)
    offset = -1
    for _ in range(times):
        forged(bootstrap, begun, ledger, "state", "", forge(there[key][0]))
    with service(bootstrap, begun.group_id, ledger) as cold:
        for one in (begun, cold):
            with pytest.raises((LedgerVersionError, LedgerCorruptError)) as caught:
                one.plan(before(orders, 25), "next")
            offset = told(caught.value, begun.group_id, ledger, "state")
        shown = cold.restore_record(offset, dry_run=True)
        assert stored(bootstrap, place)[key] != there[key]
        assert cold.restore_record(offset) == shown
        assert stored(bootstrap, place) == there
        for one in (begun, cold):
            assert [found.window_id for found in one.summaries().windows] == ["done", "open"]
        cold.commit(cold.show("open").plan)
        rest = begun.plan(before(orders, 100), "rest")
        assert offsets_of(read_plan(begun.settings, rest)) == {2, 4, 5}


@pytest.mark.slow
@pytest.mark.parametrize("forge", [newer, newer_plan, cut])
@pytest.mark.parametrize("window_id", ["open", "done"])
def test_a_forged_window_is_restored(
    bootstrap: str,
    begun: OrderedWindows,
    orders: str,
    ledger: str,
    forge: Callable[[bytes], bytes],
    window_id: str,
) -> None:
    """By the command line, as its error says: the window has its offsets again."""
    place, key = place_of(ledger, begun.group_id), key_of(begun.group_id, "window", window_id)
    there = stored(bootstrap, place)
    forged(bootstrap, begun, ledger, "window", window_id, forge(there[key][0]))
    options = ["-b", bootstrap, "-g", begun.group_id, "--ledger-topic", ledger, "--json"]
    failed = cli("windows", "show", window_id, *options)
    assert failed.error["type"] in ("LedgerVersionError", "LedgerCorruptError")
    found = CURE.search(failed.error["message"])
    assert found is not None
    assert found[1] == begun.group_id
    restored = cli("windows", "restore-record", found[2], *options)
    assert restored.code == 0, restored.stderr
    facts = restored.json
    assert (facts["kind"], facts["name"], facts["dry_run"]) == ("window", window_id, False)
    assert facts["restored_from"] < facts["offset"] == int(found[2])
    assert stored(bootstrap, place) == there
    assert begun.show(window_id).plan.window_id == window_id
    rest = begun.plan(before(orders, 100), "rest")
    assert offsets_of(read_plan(begun.settings, rest)) == {2, 4, 5}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["window", "forgotten"])
def test_a_forged_record_that_there_never_was_is_removed(
    bootstrap: str, begun: OrderedWindows, orders: str, ledger: str, kind: str
) -> None:
    """Nothing can be put back, and nothing is left of it."""
    place = place_of(ledger, begun.group_id)
    there = stored(bootstrap, place)
    forged(bootstrap, begun, ledger, kind, "never", b'{"version":1000}')
    calls: dict[str, Callable[[], Any]] = {
        "window": begun.list,
        "forgotten": lambda: begun.plan(before(orders, 25), "never"),
    }
    with pytest.raises(LedgerVersionError) as caught:
        calls[kind]()
    offset = told(caught.value, begun.group_id, ledger, kind)
    assert begun.restore_record(offset).restored_from is None
    assert stored(bootstrap, place) == there
    calls[kind]()


@pytest.mark.slow
def test_a_state_that_the_ledger_no_longer_has_is_given_up_in_two_steps(
    bootstrap: str, windows: OrderedWindows, orders: str, ledger: str
) -> None:
    """A group of windows never starts over by itself: the state is damaged then, with the cure for that."""
    place = place_of(ledger, windows.group_id)
    put(
        bootstrap,
        place,
        key_of(windows.group_id, "state", ""),
        b'{"version":1000}',
        {"koo-generation": "5", "koo-parts": "1"},
    )
    put(
        bootstrap,
        place,
        key_of(windows.group_id, "window", "w"),
        b"?",
        {"koo-generation": "5", "koo-parts": "1"},
    )
    with pytest.raises(LedgerVersionError) as caught:
        windows.plan(before(orders, 25), "next")
    restored = windows.restore_record(told(caught.value, windows.group_id, ledger, "state"))
    assert restored.restored_from is None
    with pytest.raises(LedgerCorruptError, match="offsets reset"):
        windows.plan(before(orders, 25), "next")
    windows.reset_offsets("earliest", topics=orders)
    assert not [one for one in stored(bootstrap, place) if windows.group_id.encode() in one]
    windows.commit(windows.plan(before(orders, 100, Committed()), "all"))


def test_a_state_of_a_group_that_never_was_is_removed(
    bootstrap: str, windows: OrderedWindows, orders: str, ledger: str
) -> None:
    """Somebody took the name of a group before its first window."""
    forged(bootstrap, windows, ledger, "state", "", b'{"version":1000}')
    with pytest.raises(LedgerVersionError) as caught:
        windows.plan(before(orders, 25, Committed()), "first")
    windows.restore_record(told(caught.value, windows.group_id, ledger, "state"))
    assert windows.state() is None


@pytest.mark.slow
def test_what_was_removed_does_not_come_back(
    bootstrap: str, begun: OrderedWindows, orders: str, ledger: str
) -> None:
    """A window that was abandoned while it could not be read is gone; a record forged in its place is removed."""
    place = place_of(ledger, begun.group_id)
    forged(bootstrap, begun, ledger, "window", "open", b"?")
    begun.abandon("open")
    there = stored(bootstrap, place)
    forged(bootstrap, begun, ledger, "window", "open", b'{"version":1000}')
    with pytest.raises(LedgerVersionError) as caught:
        begun.show("open")
    offset = told(caught.value, begun.group_id, ledger, "window")
    assert begun.restore_record(offset).restored_from is None
    assert stored(bootstrap, place) == there


@pytest.mark.slow
def test_nothing_else_is_restored(
    bootstrap: str, begun: OrderedWindows, orders: str, ledger: str
) -> None:
    """A record that can be read, another group's, an older one, or an offset without a record: nothing changes."""
    place = place_of(ledger, begun.group_id)
    there = stored(bootstrap, place)
    forged(bootstrap, begun, ledger, "window", "done", b"?")
    with pytest.raises(LedgerCorruptError) as caught:
        begun.show("done")
    offset = told(caught.value, begun.group_id, ledger, "window")
    wrong = stored(bootstrap, place)
    with service(bootstrap, f"{begun.group_id}-2", ledger) as other:
        for one, at in [(begun, at) for at in range(offset)] + [(begun, 10**9), (other, offset)]:
            with pytest.raises(ConfigError, match=rf"offset {at} of the ledger"):
                one.restore_record(at)
    for odd in (-1, 2**63, True, "1", None):
        with pytest.raises(ConfigError, match="offset"):
            begun.restore_record(odd)  # type: ignore[arg-type]
    assert stored(bootstrap, place) == wrong
    begun.restore_record(offset)
    with pytest.raises(ConfigError, match="restored"):
        begun.restore_record(offset)
    assert stored(bootstrap, place) == there
