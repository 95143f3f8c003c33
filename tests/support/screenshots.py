"""Pages and their pictures by Playwright, which drives the ``chromium`` on the path."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from PIL import Image

_PAGE_TIMEOUT_MS: Final = 60_000
#: Of a picture that is kept.
_COLOURS: Final = 256


@contextmanager
def chromium(*, bypass_csp: bool = True) -> Iterator[Any]:
    """Playwright's page of a browser with one."""
    from playwright.sync_api import sync_playwright

    options = ["--no-proxy-server", "--disable-gpu"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=options, chromium_sandbox=False
        )
        # Pages forbid scripts in texts, which is what waiting for them comes to.
        page = browser.new_page(bypass_csp=bypass_csp)
        page.set_default_timeout(_PAGE_TIMEOUT_MS)
        yield page
        browser.close()


def await_text(page: Any, text: str) -> None:
    """Waits until the page shows a text."""
    page.wait_for_function("text => document.body?.innerText.includes(text)", arg=text)


def keep_picture(
    page: Any,
    file: Path,
    *,
    left: int = 0,
    top: int = 0,
    right: int | None = None,
    bottom: int | None = None,
) -> None:
    """Writes what the page looks like between these places, with as few colours as a page without photographs needs."""
    size = page.viewport_size
    width = (size["width"] if right is None else right) - left
    height = (size["height"] if bottom is None else bottom) - top
    png = page.screenshot(clip={"x": left, "y": top, "width": width, "height": height})
    with Image.open(io.BytesIO(png)) as picture:
        # So that few pixels of a warning's colour count as well.
        few = picture.convert("RGB").quantize(_COLOURS, Image.Quantize.MAXCOVERAGE)
        few.save(file, optimize=True)
    print(f"{file.name}: {file.stat().st_size:,} bytes")
