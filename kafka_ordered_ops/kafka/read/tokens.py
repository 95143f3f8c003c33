"""Tokens of SASL OAUTHBEARER for the native reader: of an identity provider (OIDC), or of one that the settings name.

The requests are librdkafka's, which fetches its own tokens. No text form and no message contains a secret or a token.
"""

from __future__ import annotations

import base64
import http.client
import json
import logging
import math
import re
import ssl
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.parse import urlencode

from kafka_ordered_ops.core.strict_json import PARSER_ERRORS
from kafka_ordered_ops.kafka.client.token_providers import NoTokensError, Token, TokenProvider
from kafka_ordered_ops.kafka.known_settings import TOKEN_PROVIDER, TOKEN_REGION

METHOD: Final = "sasl.oauthbearer.method"
_GRANT: Final = "sasl.oauthbearer.grant.type"
_URL: Final = "sasl.oauthbearer.token.endpoint.url"
_IDS: Final = (
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.id",
)
_SECRETS: Final = (
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.client.credentials.client.secret",
)
_SCOPE: Final = "sasl.oauthbearer.scope"
_EXTENSIONS: Final = "sasl.oauthbearer.extensions"
_CA_FILE: Final = "https.ca.location"
_CA_PEM: Final = "https.ca.pem"

#: Settings of tokens that the native reader honours. Only librdkafka uses the name of the claim with the principal.
TOKEN_SETTINGS: Final = frozenset(
    {
        *(METHOD, _GRANT, _URL, *_IDS, *_SECRETS, _SCOPE, _EXTENSIONS, _CA_FILE, _CA_PEM),
        "sasl.oauthbearer.sub.claim.name",
        # What a provider's function takes.
        "sasl.oauthbearer.config",
        *(TOKEN_PROVIDER, TOKEN_REGION),
    }
)

#: The share of a token's life after which it is replaced. Sessions are renewed later, with the new token.
_RENEWED_AFTER: Final = 0.8
#: Between two attempts to get a token, while the provider gives none.
_RETRY_S: Final = 5.0
_TIMEOUT_S: Final = 10.0
#: More than any token.
_ANSWER_BYTES_MAX: Final = 1_048_576
#: What RFC 6750 allows in a token, and RFC 7628 in an extension.
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_EXTENSION: Final = re.compile(r"([A-Za-z]+)=([\x21-\x7e \t\r\n]+)")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, repr=False)
class Provider:
    """An identity provider, with this client's id and secret."""

    _request: urllib.request.Request
    _opener: urllib.request.OpenerDirector
    _extensions: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, config: Mapping[str, str]) -> Provider:
        """Return the provider of a client's settings. Raises `NoTokensError`."""
        if config.get(METHOD, "").strip().lower() != "oidc":
            raise NoTokensError(f"it gets tokens by {METHOD}=oidc only")
        if config.get(_GRANT, "client_credentials") != "client_credentials":
            raise NoTokensError(f"it gets tokens by {_GRANT}=client_credentials only")
        url, client_id, secret = (
            _first(config, _URL),
            _first(config, *_IDS),
            _first(config, *_SECRETS),
        )
        if not url.startswith(("http://", "https://")):
            raise NoTokensError(f"{_URL} does not begin with http:// or https://")
        if "@" in url:
            # The log has the address.
            raise NoTokensError(f"{_URL} has a user")
        form = {"grant_type": "client_credentials"}
        if scope := config.get(_SCOPE):
            form["scope"] = scope
        credentials = base64.b64encode(f"{client_id}:{secret}".encode()).decode()
        headers = {"Accept": "application/json", "Authorization": f"Basic {credentials}"}
        try:
            request = urllib.request.Request(url, urlencode(form).encode(), headers)
        except ValueError:
            raise NoTokensError(f"{_URL} is not a valid URL") from None
        return cls(request, _opener(config), _extensions(config))

    @property
    def name(self) -> str:
        """The address of the provider's tokens."""
        return self._request.full_url

    def fetch(self) -> Token:
        """Return a new token. Raises `NoTokensError`, whose text contains neither the secret nor the answer."""
        try:
            with self._opener.open(self._request, timeout=_TIMEOUT_S) as answer:
                body = answer.read(_ANSWER_BYTES_MAX)
        except HTTPError as error:
            error.close()
            raise NoTokensError(f"HTTP status {error.code}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NoTokensError(f"{type(error).__name__}: {getattr(error, 'reason', '')}") from None
        return _token(body, self._extensions)


class Tokens:
    """The token of one reader, which is replaced before it expires. Not thread safe."""

    def __init__(self, provider: Provider | TokenProvider) -> None:
        self._provider = provider
        self._renew_at = 0.0
        self._expires_at = 0.0

    def renew(self, put: Callable[[str, list[tuple[str, str]], float], None]) -> bool:
        """Put a new token where it is used, if one is due; return False if none is valid after an attempt."""
        if (now := time.monotonic()) < self._renew_at:
            return True
        try:
            token = self._provider.fetch()
        except NoTokensError as error:
            self._renew_at = time.monotonic() + _RETRY_S
            _log.warning("no token from %s: %s", self._provider.name, error)
            return time.monotonic() < self._expires_at
        valid_s = token.expires_s - time.time()
        self._renew_at, self._expires_at = now + _RENEWED_AFTER * valid_s, now + valid_s
        put(token.text, list(token.extensions), valid_s)
        return True


def _token(body: bytes, extensions: tuple[tuple[str, str], ...]) -> Token:
    try:
        text = json.loads(body)["access_token"]
        claims = json.loads(base64.urlsafe_b64decode(text.split(".")[1] + "=="))
        token = Token(text, float(claims["exp"]), extensions)
        if not math.isfinite(token.expires_s):
            raise OverflowError
    except PARSER_ERRORS:
        raise NoTokensError("the answer has no JWT that expires as its access_token") from None
    if not _TOKEN.fullmatch(token.text):
        raise NoTokensError("the token has characters that no token has")
    if not token.expires_s > time.time():
        raise NoTokensError("the token has expired")
    return token


def _first(config: Mapping[str, str], *keys: str) -> str:
    for key in keys:
        if value := config.get(key):
            return value
    raise NoTokensError(f"it needs {keys[0]}")


def _extensions(config: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    pairs = []
    for text in filter(None, config.get(_EXTENSIONS, "").split(",")):
        if not (match := _EXTENSION.fullmatch(text)) or match[1] == "auth":
            raise NoTokensError(f"{_EXTENSIONS} is not name=value,...")
        pairs.append((match[1], match[2]))
    return tuple(pairs)


def _opener(config: Mapping[str, str]) -> urllib.request.OpenerDirector:
    """Return what sends requests, but follows no redirection: it would send the secret elsewhere."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=_context(config)),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _context(config: Mapping[str, str]) -> ssl.SSLContext:
    """Return how the provider's certificate is checked: by the system's authorities, unless the settings name others."""
    pem, location = config.get(_CA_PEM), config.get(_CA_FILE)
    if not pem and location in (None, "", "probe"):
        return ssl.create_default_context()
    try:
        if pem:
            return ssl.create_default_context(cadata=pem)
        path = Path(str(location))
        if path.is_dir():
            return ssl.create_default_context(capath=str(path))
        return ssl.create_default_context(cafile=str(path))
    except (OSError, ValueError):
        raise NoTokensError(
            f"{_CA_PEM if pem else _CA_FILE} has no certificates that it can read"
        ) from None
