"""The comparison ``growth``: the curves of a group, on their own broker."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.growth import CURVES, GROWTH, growth_comparison
from benchmarks.report import TABLES_NAME
from benchmarks.results import read_results
from benchmarks.statistics import exponent, results_of
from benchmarks.tables import curve_table
from benchmarks.usage import received_bytes
from tests.support.bench_support import measured


@pytest.mark.long
def test_every_curve_is_measured(tmp_path: Path) -> None:
    """At each of its sizes, with figures, and a row for each of them on the page."""
    asked = ["--only", GROWTH, "--scale", "smoke", "--repeats", "1"]
    assert main([*asked, "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]) == 0
    [kept] = read_results(tmp_path / "out").values()
    found = {(one.contender, one.size) for one in kept.measurements}
    assert found == {(one.name, one.size) for one in growth_comparison("smoke").contenders}
    page = (tmp_path / "out" / TABLES_NAME).read_text()
    for one in kept.measurements:
        assert one.figures
        assert any(one.figures.values())
        assert all(f"| {name} |" in page for name in one.figures)
    assert all(f"| {curve.name} |" in page for curve in CURVES)


def test_an_exponent_is_between_the_last_two_sizes() -> None:
    """Of a figure that both of them have: a smaller size does not count."""
    figures = {100: {"s": 7.0}, 10: {"s": 7.0, "flat": 3.0}, 1_000: {"s": 700.0, "flat": 3.0}}
    runs = [
        replace(measured("curve", 1, 1.0, size=size), figures=found)
        for size, found in figures.items()
    ]
    results = sorted(results_of(runs), key=lambda one: one.size)
    assert exponent(results, "s") == pytest.approx(2)
    assert exponent(results, "flat") == pytest.approx(0)
    assert exponent(results[:1], "s") is None
    assert curve_table(results_of(runs)).splitlines() == [
        "| curve | 10 | 100 | 1,000 | exponent |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| s | 7 | 7 | 700 | 2.0 |",
        "| flat | 3 | - | 3 | 0.0 |",
    ]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux tells")
def test_received_bytes_are_those_of_open_connections() -> None:
    """What arrived counts, and nothing is left open by counting."""
    before, files = received_bytes(), len(list(Path("/proc/self/fd").iterdir()))
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
        server.accept()[0] as other,
    ):
        one.sendall(b"x" * 12_345)
        assert len(other.recv(12_345, socket.MSG_WAITALL)) == 12_345
        assert received_bytes() - before == 12_345
    assert len(list(Path("/proc/self/fd").iterdir())) == files
