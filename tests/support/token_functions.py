"""Functions that make tokens, as a deployment names them in `sasl.token.provider`."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from tests.support.identity_provider import unsecured

FETCH = f"{__name__}:fetch"
#: In each error of `fetch`, and nowhere else.
CANARY = "canary-of-the-function"
#: Lets a function that waits go on.
GO_ON = threading.Event()
#: Tokens that were made in this process.
made: list[str] = []


class SlowConnectError(Exception):
    """As libraries have them: not one of Python's."""


def fetch(config: str) -> object:
    """Return a token, and do what the setting `sasl.oauthbearer.config` says."""
    what, _, more = config.partition(" ")
    if what == "refused":
        raise ValueError(CANARY)
    if what == "away":
        raise RuntimeError(CANARY) from SlowConnectError(CANARY)
    if what == "hangs":
        GO_ON.wait()
    if what == "none":
        return {"token": CANARY}
    lifetime_s = float(more) if what == "lives" else 3_600.0
    if what == "file":
        # A call of another process shows there.
        with Path(more).open("a") as file:
            file.write("called\n")
    token = unsecured(lifetime_s)
    made.append(token)
    if what == "extended":
        return token, time.time() + lifetime_s, "jobs", {"team": "data"}
    return token, time.time() + lifetime_s
