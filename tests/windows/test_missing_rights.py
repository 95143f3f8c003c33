"""What an error about a right says of all the others; on real brokers, see `tests/kafka/test_ledger_faults.py`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, Final

import pytest

from kafka_ordered_ops import (
    AuthorizationError,
    BrokerUnreachableError,
    OrderedWindows,
    Window,
    WindowPlan,
)
from kafka_ordered_ops.cli.exits import error_json
from kafka_ordered_ops.core.errors.rights import MissingRight, Resource
from kafka_ordered_ops.testing import InMemoryKafka
from kafka_ordered_ops.windows.queries import rights
from tests.support.hosts_support import GROUP
from tests.support.hosts_support import kafka as kafka
from tests.support.windows_support import at

_REFUSAL: Final = "not authorized to read t"
_MANY: Final = [MissingRight(("READ",), Resource.TOPIC, f"t{number}") for number in range(500)]


def refused(*_: object, **__: object) -> Any:
    """As a broker answers."""
    raise AuthorizationError(_REFUSAL, code="TOPIC_AUTHORIZATION_FAILED", resource="topic")


@pytest.fixture
def plan_refused(
    kafka: InMemoryKafka, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., AuthorizationError]:
    """The error of a plan that is refused, where the cluster answers the question for rights with this."""

    def error_of(answer: Callable[..., list[MissingRight]]) -> AuthorizationError:
        monkeypatch.setattr(rights, "missing_rights", answer)
        with OrderedWindows(kafka.settings, GROUP) as windows:
            monkeypatch.setattr(type(windows._lookup), "selected", refused)
            with pytest.raises(AuthorizationError) as caught:
                windows.plan(Window("t", at(4), starting_offsets="earliest"))
        return caught.value

    return error_of


def test_the_list_is_a_field_and_many_rights_make_no_long_text(
    plan_refused: Callable[..., AuthorizationError],
) -> None:
    """The refusal comes first; the field has all; processes and JSON carry it."""
    error = plan_refused(lambda *_, **__: _MANY)
    text = str(error)
    assert text.startswith(_REFUSAL)
    assert "READ on topic t0; READ on topic t1" in text
    assert "and 480 more" in text
    assert (error.missing, error.code) == (tuple(_MANY), "TOPIC_AUTHORIZATION_FAILED")
    assert pickle.loads(pickle.dumps(error)).missing == error.missing
    assert error_json(error)["error"]["facts"]["missing"][0] == {
        "operations": ["READ"],
        "resource": "topic",
        "name": "t0",
        "is_prefix": False,
        "condition": None,
    }


@pytest.mark.parametrize("failure", [BrokerUnreachableError("no answer"), TypeError("a bug")])
def test_a_failed_question_hides_no_refusal(
    plan_refused: Callable[..., AuthorizationError], failure: Exception
) -> None:
    """The error names the one right, and says that there may be others."""

    def fail(*_: object, **__: object) -> list[MissingRight]:
        raise failure

    error = plan_refused(fail)
    assert str(error).startswith(_REFUSAL)
    assert str(error).count("Other rights may be missing") == 1
    assert str(failure) in str(error)
    assert error.missing == ()


def test_a_right_that_is_there_by_now_leaves_the_refusal_as_it_is(
    plan_refused: Callable[..., AuthorizationError],
) -> None:
    """Nothing is added to it."""
    assert str(plan_refused(lambda *_, **__: [])) == _REFUSAL


def test_a_refused_read_of_a_delivery_names_all_rights_too(
    kafka: InMemoryKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job reads after the plan, and its topics are asked about."""
    asked = list[WindowPlan]()

    def answer(*_: object, about: Any, **__: object) -> list[MissingRight]:
        [[plan]] = about
        asked.append(plan)
        return _MANY[:1]

    monkeypatch.setattr(rights, "missing_rights", answer)
    with OrderedWindows(kafka.settings, GROUP) as windows:
        plan = windows.plan(Window("t", at(4), starting_offsets="earliest"))
        with pytest.raises(AuthorizationError, match="READ on topic t0"):
            windows.deliver(plan, refused, lambda _: None)
    assert asked == [plan]
