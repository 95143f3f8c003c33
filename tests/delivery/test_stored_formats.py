"""Every stored format: what version 0.1.0 stored is read, is written again as it was, and is refused with a newer version.

`tests/samples/formats.json` has what users have stored. A change of a format fails here. A new format is added to
`tests.support.stored_formats.formats`, and its sample with::

    python -m tests.support.stored_formats

This adds what is missing, and changes no sample: an older one stays, and is read by its own reader.
"""

from __future__ import annotations

import pytest

from tests.support.pages import ROOT
from tests.support.stored_formats import Format, formats, stored

FORMATS = dict(formats())
STORED = stored()
EVERY = pytest.mark.parametrize("name", FORMATS)


def test_every_format_has_its_sample() -> None:
    """And no sample is without a reader."""
    assert FORMATS.keys() == STORED.keys()


@EVERY
def test_a_sample_is_read(name: str) -> None:
    """It gives the value that was stored."""
    assert FORMATS[name].read(STORED[name]) == FORMATS[name].value


@EVERY
def test_the_value_is_written_as_it_was(name: str) -> None:
    """To the byte; of compressed ones, what is written is read back."""
    one = FORMATS[name]
    written = one.write(one.value)
    if one.is_exact:
        assert written == STORED[name]
    else:
        assert one.read(written) == one.value


@pytest.mark.parametrize(
    ("name", "number"),
    [(name, number) for name, one in FORMATS.items() for number in range(len(one.newer))],
)
def test_a_newer_version_is_named(name: str, number: int) -> None:
    """With the version that is stored, and the one that is read; but for those whose other fields are read as ever."""
    one: Format = FORMATS[name]
    newer = one.newer[number](STORED[name])
    assert newer != STORED[name]
    if one.error is None:
        assert one.read(newer) == one.of_newer
        return
    with pytest.raises(one.error) as raised:
        one.read(newer)
    assert type(raised.value) is one.error
    assert "version 2" in str(raised.value)
    assert "reads version 1" in str(raised.value)


def test_a_format_without_a_version_is_a_name() -> None:
    """All others say their version, and each is on the page."""
    for name, one in FORMATS.items():
        assert bool(one.newer) != name.startswith("name: ")
    page = (ROOT / "docs" / "ledger.md").read_text(encoding="utf-8")
    for name in FORMATS:
        assert f"`{name.partition(': ')[0]}`" in page
