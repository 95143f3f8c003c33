"""The status page: one file that loads nothing from other sites."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from importlib.resources import files
from typing import Final

PAGE: Final = files(__package__).joinpath("page.html").read_bytes()


def _hash_of(tag: str) -> str:
    [content] = re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), PAGE, re.S)
    return f"'sha256-{b64encode(hashlib.sha256(content).digest()).decode()}'"


#: Only the page's own script may run, and may only call its own server.
PAGE_HEADERS: Final = {
    "content-type": "text/html; charset=utf-8",
    "content-security-policy": f"default-src 'none'; script-src {_hash_of('script')}; "
    f"style-src {_hash_of('style')}; connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
