"""The status page, in a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafka_ordered_ops.relay.http.access import add_entry, new_token
from kafka_ordered_ops.relay.http.server import Listening
from kafka_ordered_ops.relay.rights import Verb
from tests.support.relay_fake import FakeService
from tests.support.relay_server import Running, serving
from tests.support.screenshots import chromium

pytest.importorskip("playwright", reason="the browser's driver is in the group browser alone")
if shutil.which("chromium") is None:
    pytest.skip("no chromium on the path", allow_module_level=True)

pytestmark = pytest.mark.slow


@pytest.fixture
def page() -> Iterator[Any]:
    """A page of a browser, which must not report an error."""
    with chromium(bypass_csp=False) as made:
        errors: list[str] = []
        made.on("pageerror", lambda error: errors.append(str(error)))
        made.on(
            "console",
            lambda one: errors.append(one.text) if "Content Security" in one.text else None,
        )
        yield made
        assert errors == []


def text_of(page: Any) -> str:
    """What the page shows."""
    text: str = page.inner_text("body")
    return text


def await_shown(page: Any, text: str) -> None:
    """Waits until the page shows a text, under its own policy."""
    page.get_by_text(text).first.wait_for()


def rows(page: Any) -> list[list[str]]:
    """The cells of the table."""
    return [one.locator("td").all_text_contents() for one in page.locator("#rows tr").all()]


@pytest.mark.long
def test_page_follows_the_server(page: Any) -> None:
    """It shows every partition, and later what has become of it, or that the server is gone."""
    with serving(Listening(port=0), FakeService(("orders", "payments"))) as running:
        page.goto(running.url)
        await_shown(page, "Ready. 2,500 offsets waiting, 6 records leased.")
        wanted = ["billing", "this server", "0", "1,250", "3", "7", "12", ""]
        assert rows(page) == [["orders", *wanted], ["payments", *wanted]]
        running.service.lag = None
        await_shown(page, "Ready. ? offsets waiting")
        running.service.problem = "its dead letter is refused"
        await_shown(page, "its dead letter is refused")
        assert page.locator("#rows tr.bad").count() == 2
        running.service.is_ready = False
        await_shown(page, "Not ready")
        set_topics(running, ())
        await_shown(page, "0 records leased")
        assert rows(page) == []
    await_shown(page, "The server does not answer.")


def test_page_says_what_waits_on_a_phone(page: Any) -> None:
    """A line for each group and topic, the longest queue first, without scrolling sideways at 360 pixels."""
    service = FakeService(("a-topic-with-a-rather-long-name.orders.v2", "payments"))
    service.known = ["billing", "a-group-with-a-rather-long-name.of.a.team"]
    page.set_viewport_size({"width": 360, "height": 740})
    with serving(Listening(port=0), service) as running:
        page.goto(running.url)
        await_shown(page, "5,000 offsets waiting, 12 records leased.")
        lines = [one.locator("td").all_inner_texts() for one in page.locator("#groups tr").all()]
        assert [line[2:] for line in lines] == [["1,250", "3", ""]] * 4
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.click("summary")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def set_topics(running: Running, topics: tuple[str, ...]) -> None:
    """The server's topics, from now on."""
    running.service.topics = frozenset(topics)


def test_page_shows_names_as_they_are(page: Any) -> None:
    """A name cannot become a part of the page."""
    service = FakeService(("<img src=x onerror=alert(1)>",))
    with serving(Listening(port=0), service) as running:
        page.goto(running.url)
        await_shown(page, "<img src=x")
        assert page.locator("img").count() == 0


def test_page_asks_for_the_token(page: Any, tmp_path: Path) -> None:
    """With tokens, it shows nothing until a valid one is typed in, and keeps it for the tab."""
    token, entry = new_token("people", topics=["*"], groups=["*"], verbs=[Verb.DESCRIBE])
    add_entry(tmp_path / "tokens", entry)
    with serving(Listening(port=0, tokens=tmp_path / "tokens")) as running:
        page.goto(running.url)
        await_shown(page, "Enter an access token.")
        assert "orders" not in text_of(page)
        page.fill("#token", "wrong")
        page.click("button")
        await_shown(page, "The token is not valid.")
        page.fill("#token", token)
        page.click("button")
        await_shown(page, "3 records leased")
        page.reload()
        await_shown(page, "3 records leased")
        assert not page.locator("#access").is_visible()
