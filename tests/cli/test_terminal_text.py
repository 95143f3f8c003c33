"""Text of others on a terminal, and in the cells of a spreadsheet: shown, never obeyed."""

from __future__ import annotations

import csv
import io
import json
import logging
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from kafka_ordered_ops import ConfigError
from kafka_ordered_ops.cli.show.printable import in_json, in_line, printable
from kafka_ordered_ops.cli.show.safe_console import SafeConsole
from kafka_ordered_ops.cli.show.screen import Screen
from kafka_ordered_ops.windows import OrderedWindows
from tests.cli.test_cli_live import Terminal
from tests.conftest import MakeTopic, Produce
from tests.support.cli_support import cli
from tests.support.ledger_support import begun as begun
from tests.support.ledger_support import key_of, place_of, put, stored
from tests.support.ledger_support import ledger as ledger
from tests.support.ledger_support import windows as windows

#: Clears the screen, sets a title, turns the order of letters, returns the carriage, and begins an 8-bit escape.
EVIL = "\x1b[2J\x1b]0;owned\x07\u202etxt.exe\r\x9b31m\u2066\x7fend"
UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

#: Half of them are what a terminal obeys.
texts = st.text(max_size=30) | st.text(
    st.sampled_from("\x00\x07\x08\x1b\x7f\x85\x9b\r\n\t\u200f\u202e\u2066\u2028\ufeff\xadab"),
    max_size=30,
)


def unsafe_in(text: str, allowed: str = "\n\t") -> set[str]:
    """The characters that a terminal would obey."""
    return {one for one in text if unicodedata.category(one) in UNSAFE and one not in allowed}


def test_every_character_that_has_an_effect_is_escaped() -> None:
    """All of Unicode: control, format and separator characters are, and letters, signs and emoji are not."""
    for number in range(0x110000):
        one = chr(number)
        if unicodedata.category(one) in UNSAFE:
            assert printable(one) == (one if one in "\n\t" else ascii(one)[1:-1])
            assert in_line(one) == ascii(one)[1:-1]
    for kept in ("abc äöü ß €", "日本語", "😀", "a\xa0b", "\\x1b", "[red]"):
        assert printable(kept) == in_line(kept) == in_json(kept) == kept


@given(texts)
def test_escaped_json_is_the_same_value(text: str) -> None:
    """So what is copied from a terminal can be read."""
    written = json.dumps({text: [text]}, ensure_ascii=False)
    shown = in_json(written)
    assert not unsafe_in(shown)
    assert json.loads(shown) == {text: [text]}


@given(texts, st.integers(20, 120))
def test_nothing_that_is_shown_is_obeyed(text: str, width: int) -> None:
    """As a line, a styled text, a cell, a title, inside of others: at any width, on a terminal or in a file."""
    for is_terminal in (False, True):
        out = io.StringIO()
        console = SafeConsole(
            file=out, width=width, force_terminal=is_terminal, no_color=True, color_system=None
        )
        table = Table(text, title=text, caption=Text(text, "bold"))
        table.add_row(text)
        table.add_row(Text.assemble((text, "red"), text))
        for shown in (text, Text(text), Text.assemble((text, "red"), text), table):
            console.print(shown)
            console.print(shown, soft_wrap=True)
        assert not unsafe_in(out.getvalue()) - ({"\x1b"} if is_terminal else set())
        # On a terminal, rich's own codes are those that begin with a bracket.
        assert "\x1b]" not in out.getvalue()
        assert "\x1b[2J" not in out.getvalue()


@given(texts)
def test_a_message_is_one_line_and_a_log_shows_no_codes(text: str) -> None:
    """A value with a line feed looks like no other message."""
    with pytest.MonkeyPatch.context() as patch:
        err = io.StringIO()
        patch.setattr("sys.stderr", err)
        screen = Screen(as_json=False, debug=False)
        with screen:
            screen.show_logs()
            screen.say(f"note: {text}")
            said = err.getvalue()
            logging.getLogger("kafka_ordered_ops.windows").warning("window %s", text)
            screen.fail(ConfigError(f"window {text}"), with_traceback=False)
    assert said.count("\n") == 1
    assert not unsafe_in(err.getvalue())


@pytest.fixture
def evil_orders(topic: MakeTopic, produce: Produce) -> str:
    """A record whose key, value and header a terminal would obey."""
    name = topic()
    data = EVIL.encode()
    produce([(name, 0, data, data, 1_772_366_400_000, [("h\u202e", data)])])
    return name


@pytest.mark.slow
@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_records_on_a_terminal(bootstrap: str, evil_orders: str, form: str, tmp_path: Path) -> None:
    """They are shown with escapes; in a file they are what they are."""
    words: tuple[object, ...] = (
        "read",
        evil_orders,
        "-b",
        bootstrap,
        "--format",
        form,
        "--no-table",
    )
    terminal = Terminal(words, lines=40)
    terminal.read_until("1 record")
    assert terminal.close() == 0
    shown = terminal.text
    assert "\\u001b[2J" in shown
    assert "\\u202etxt.exe" in shown
    assert not unsafe_in(shown.replace("\r\n", "\n").replace("\x1b[", "")) - {"\r"}
    assert "\x1b[2J" not in shown
    assert "\x1b]" not in shown
    file = tmp_path / "records"
    assert cli(*words, "-o", file).code == 0
    with file.open(newline="") as lines:
        if form == "jsonl":
            assert json.loads(lines.read())["value"] == EVIL
        else:
            [_, row] = csv.reader(lines)
            assert row[5] == EVIL


@pytest.mark.long
def test_forged_records_of_the_ledger_on_a_terminal(
    bootstrap: str, begun: OrderedWindows, ledger: str
) -> None:
    """A run id, a note and a kind of state with codes: in tables, lines and errors they are escapes."""
    place, group = place_of(ledger, begun.group_id), begun.group_id
    key = key_of(group, "window", "open")
    value, headers = stored(bootstrap, place)[key]
    record = json.loads(value)
    record["run_id"] = f"{EVIL}\ncommitted  yes"
    record["plan"]["notes"] = [EVIL]
    record["result"] = {EVIL: EVIL}
    put(bootstrap, place, key, json.dumps(record).encode(), headers)
    where = ["-b", bootstrap, "-g", group, "--ledger-topic", ledger]
    for words in (["windows", "show", "open"], ["windows", "list"]):
        shown = cli(*words, *where)
        assert shown.code == 0, shown.stderr
        assert not unsafe_in(shown.stdout + shown.stderr)
        assert "\ncommitted  yes" not in shown.stdout
    assert "\\x1b[2J" in cli("windows", "show", "open", *where).stdout
    key = key_of(group, "state", "")
    value, headers = stored(bootstrap, place)[key]
    put(bootstrap, place, key, json.dumps({**json.loads(value), "kind": EVIL}).encode(), headers)
    failed = cli("windows", "list", *where)
    assert failed.code == 4
    assert "LedgerCorruptError" in failed.stderr
    assert not unsafe_in(failed.stderr)


@pytest.mark.slow
def test_a_wrong_argument_on_a_terminal() -> None:
    """Scripts pass on what others named."""
    for words in (["windows", "show", EVIL, EVIL], [f"--{EVIL}"], [EVIL]):
        refused = cli(*words)
        assert refused.code == 2
        assert not unsafe_in(refused.stderr)


# --- spreadsheets ------------------------------------------------------------------------------------

FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", " =1", "\t=1", "\r=1", "\n@x", "\uff1d1"]
PLAIN = ["a=1", "1", "", "'=1", "x-y"]


@pytest.mark.slow
def test_cells_of_a_csv_are_guarded_if_so_asked(
    bootstrap: str, topic: MakeTopic, produce: Produce, tmp_path: Path
) -> None:
    """With the option an apostrophe is before each formula, in keys, values and times; without it nothing is changed."""
    name = topic(config={"message.timestamp.after.max.ms": str(2**63 - 1)})
    values = [*FORMULAS, *PLAIN]
    produce(
        (name, 0, one.encode(), one.encode(), 1_772_366_400_000 + n, ())
        for n, one in enumerate(values)
    )
    produce([(name, 0, b"k", None, 253_402_300_800_000, ())])
    found: dict[bool, list[dict[str, Any]]] = {}
    for is_guarded in (False, True):
        file = tmp_path / f"{is_guarded}.csv"
        more = ["--guard-cells"] if is_guarded else []
        done = cli("read", name, "-b", bootstrap, "--format", "csv", "-o", file, *more)
        assert done.code == 0, done.stderr
        with file.open(newline="") as lines:
            found[is_guarded] = list(csv.DictReader(lines))
    assert [row["value"] for row in found[False]] == [*values, ""]
    expected = [*(f"'{one}" for one in FORMULAS), *PLAIN, ""]
    assert [row["value"] for row in found[True]] == expected
    assert [row["key"] for row in found[True]] == [*expected[:-1], "k"]
    assert [found[guarded][-1]["timestamp"] for guarded in (False, True)] == [
        "@253402300800000",
        "'@253402300800000",
    ]


def test_the_guard_is_for_csv_alone() -> None:
    """Other formats have no cells."""
    refused = cli("read", "orders", "-b", "127.0.0.1:1", "--guard-cells")
    assert refused.code == 2
    assert "--guard-cells is for csv" in refused.stderr
