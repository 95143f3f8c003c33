"""``run`` over a batch that the client cannot unpack: an error that says what to do, and both of it done."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import MakeTopic, Produce
from tests.support.bombs import BOMB, put_batch
from tests.support.cli_support import Outcome, cli
from tests.support.windows_support import BASE_MS, at


@pytest.mark.long
def test_a_bomb_is_named_and_read_or_lost_as_its_error_says(
    bootstrap: str, topic: MakeTopic, produce: Produce, group_id: str, tmp_path: Path
) -> None:
    """Exit code 4 with topic, partition and offsets; with the limit raised it is read, with the loss accepted it is not."""
    name = topic()
    produce([(name, 0, None, b"x", BASE_MS, ())])
    put_batch(bootstrap, name, BOMB, codec="zstd", seconds=[1, 2, 3, 4])
    produce([(name, 0, None, b"x", BASE_MS + 5_000, ())])

    def run(group: str, *words: str) -> Outcome:
        where = ["-b", bootstrap, "-g", group, "-t", name, "--output", str(tmp_path / group)]
        times = ["--cutoff", at(100).isoformat(), "--starting-offsets", "earliest"]
        return cli("run", *where, *times, "--engine", "local", "--json", *words)

    failed = run(group_id)
    assert failed.code == 4
    assert failed.error["type"] == "RecordTooLargeError"
    assert failed.error["facts"]["unreadable"] == {f"{name}[0]": [[1, 5]]}
    assert f"{name}[0] offsets [1, 5)" in failed.stderr
    assert "Traceback" not in failed.stderr
    done = run(group_id, "--on-data-loss", "warn")
    assert done.code == 0, done.stderr
    assert done.json["records"] == 2
    shown = cli(
        "windows", "show", done.json["window_id"], "-b", bootstrap, "-g", group_id, "--json"
    )
    [part] = shown.json["partitions"]
    assert part["lost"] == [[1, 5]]
    assert cli("lag", "-b", bootstrap, "-g", group_id, "--json").json["lag"] == 0
    text = failed.error["message"]
    enough = text.split("set receive.message.max.bytes to ")[1].split(" or more")[0]
    limit = f"receive.message.max.bytes={enough.replace(',', '')}"
    whole = run(f"{group_id}-whole", "-X", limit)
    assert whole.code == 0, whole.stderr
    assert whole.json["records"] == 6
