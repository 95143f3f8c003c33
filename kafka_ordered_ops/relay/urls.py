"""Check the URLs of servers before credentials are sent there, and mask them for errors."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

import httpx

from kafka_ordered_ops.core.errors import ConfigError

_SHOWN_LENGTH: Final = 200
_PORT_MAX: Final = 65_535
#: Everything up to the last "@", which may end a user and a password: a password with a slash is invalid in a URL, but still a
#: secret.
_USER: Final = re.compile(r"^([a-z][a-z0-9+.-]*://)?.*@", re.IGNORECASE | re.DOTALL)


def shown_url(url: str) -> str:
    """Return a URL without user and password, for errors."""
    return _USER.sub(r"\1", url)[:_SHOWN_LENGTH]


def check_url(url: str, *, has_token: bool, plain_http: bool) -> None:
    """Check the URL of a server.

    Args:
        url: the URL.
        has_token: whether an access token is sent there.
        plain_http: whether credentials may be sent without TLS to other machines.

    Raises:
        ConfigError: the URL is invalid, or credentials would be sent in plain text to another machine.
    """
    safe_url = shown_url(url)
    invalid = f"the server {safe_url!r} is an invalid URL: give https://HOST:PORT"
    try:
        parts = httpx.URL(url)
    except (httpx.InvalidURL, UnicodeError):
        # The error's own text may repeat the password.
        raise ConfigError(invalid) from None
    if parts.scheme not in ("http", "https") or not parts.host or (parts.port or 0) > _PORT_MAX:
        raise ConfigError(invalid)
    if parts.query or parts.fragment:
        raise ConfigError(invalid)
    if has_token and parts.userinfo:
        raise ConfigError(
            f"the server {safe_url!r} has a user in its URL, and there is an access token: a header can hold only one of them"
        )
    has_credentials = has_token or bool(parts.userinfo)
    is_open = parts.scheme == "http" and not _is_loopback(parts.host)
    if has_credentials and is_open and not plain_http:
        what = "the access token" if has_token else "the password"
        raise ConfigError(
            f"{what} would be sent to {safe_url} without encryption: use https://. Where something else encrypts the way there, "
            "such as a service mesh, pass plain_http=True"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
