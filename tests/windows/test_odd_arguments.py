"""Whatever a public method of the service is given, it raises an error of this package, or does what it says."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from kafka_ordered_ops import (
    Earliest,
    KafkaOrderedOpsError,
    OrderedWindows,
    Policy,
    Window,
    WindowPlan,
)
from kafka_ordered_ops.output.writing.reported import Reported
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.windows_support import BASE_MS, at

#: What somebody may pass by mistake. Classes and generators among them, and texts that are no name.
ODD: Final[list[Any]] = [
    None,
    True,
    0,
    -1,
    5,
    2.5,
    float("nan"),
    "",
    "w",
    "a\nb",
    "\ud800",
    "x" * 10_000,
    b"x",
    [],
    ["w"],
    [None],
    [[]],
    (5,),
    {},
    {"window_id": 5},
    {1, 2},
    object(),
    Window,
    WindowPlan,
    timedelta(days=-1),
    timedelta.max,
    len,
    iter([1]),
    Reported.of(1),
    [Reported.of(1)],
    Policy(),
]

#: What a function of the caller's own raises when it is called is the caller's.
_FUNCTIONS = {"write", "reopen", "keep", "clock", "progress"}

#: They change what every other call finds.
_LAST = {"close"}


@pytest.fixture
def windows() -> Iterator[OrderedWindows]:
    """A group with a window that is open, one that is published, and one that is split."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("t", 2)
        for number in range(20):
            kafka.produce(
                "t", value=b"x", partition=number % 2, timestamp_ms=BASE_MS + 1_000 * number
            )
        with OrderedWindows(kafka.settings, "g") as service:
            for name, until in (("done", 4), ("open", 8), ("split", 12)):
                service.plan(Window(["t"], at(until), starting_offsets=Earliest()), name)
            service.commit(service.show("done").plan, Reported.of(None))
            service.split(service.show("split").plan, 2)
            yield service


def odd_for(argument: str) -> list[Any]:
    """What may be passed by mistake for an argument."""
    return [odd for odd in ODD if argument not in _FUNCTIONS or not callable(odd)]


def good(service: OrderedWindows, name: str) -> Any:
    """An argument that is what it should be."""

    def plan() -> WindowPlan:
        return service.show("open").plan

    given: dict[str, Callable[[], Any]] = {
        "count": lambda: 2,
        "done": lambda: plan().taken,
        "dry_run": lambda: True,
        "forget": lambda: False,
        "keep": lambda: lambda _: True,
        "older_than": lambda: timedelta(days=1),
        "part": lambda: service.split(service.show("split").plan, 2)[0],
        "plan": plan,
        "plans": lambda: [plan()],
        "policy": Policy,
        "output": lambda: "/lake/orders",
        "reopen": lambda: lambda _: None,
        "result": dict,
        "results": lambda: [{}],
        "staged": lambda: Reported.of(1),
        "window": lambda: Window(["t"], at(16)),
        "window_id": lambda: "open",
        "window_ids": lambda: ["open"],
        "windows": lambda: [Window(["t"], at(16))],
        "write": lambda: lambda plans: [Reported.of(1)] * len(plans),
    }
    return given[name]() if name in given else None


def public_methods() -> dict[str, list[str]]:
    """Every public method with the names of its arguments."""
    methods = {}
    for name, function in inspect.getmembers(OrderedWindows, callable):
        if not name.startswith("_") and name not in _LAST:
            parameters = inspect.signature(function).parameters
            methods[name] = [one for one in parameters if one != "self"]
    return methods


CASES: Final = [
    (method, argument) for method, arguments in public_methods().items() for argument in arguments
]


def test_all_methods_are_tried() -> None:
    """One that is added is tried by itself."""
    assert {
        "plan_many",
        "commit_many",
        "deliver",
        "split",
        "report",
        "abandon",
        "prune",
        "live",
    } <= {method for method, _ in CASES}


@pytest.mark.parametrize(("method", "argument"), CASES)
def test_an_odd_argument_is_an_error_of_the_package(
    windows: OrderedWindows,
    method: str,
    argument: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Never an AssertionError, TypeError or AttributeError; the group can be read afterwards, and no folder is left."""
    monkeypatch.chdir(tmp_path)
    names = public_methods()[method]
    for odd in odd_for(argument):
        given = {name: good(windows, name) for name in names}
        given[argument] = odd
        try:
            found = getattr(windows, method)(**given)
            if hasattr(found, "__enter__"):
                with found:
                    pass
        except KafkaOrderedOpsError:
            pass
        except Exception as error:
            raise AssertionError(f"{method}({argument}={odd!r:.80}) raises {error!r}") from error
    assert list(tmp_path.iterdir()) == []
    assert {record.plan.window_id for record in windows.list()} >= {"done", "open", "split"}


@pytest.mark.parametrize("argument", list(inspect.signature(OrderedWindows).parameters))
def test_an_odd_argument_of_the_service_itself_is_an_error_of_the_package(argument: str) -> None:
    """Also where it only shows when a window is planned."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("t", 2)
        for odd in odd_for(argument):
            given: dict[str, Any] = {"settings": kafka.settings, "group_id": "g", "timeout_s": 1}
            given[argument] = odd
            try:
                with OrderedWindows(**given) as service:
                    service.plan(Window(["t"], at(5), starting_offsets=Earliest()), "w")
            except KafkaOrderedOpsError:
                pass
            except Exception as error:
                raise AssertionError(f"{argument}={odd!r:.80} raises {error!r}") from error
