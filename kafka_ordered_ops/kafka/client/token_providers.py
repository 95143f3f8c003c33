"""Token providers by name: a connection's settings name what makes its tokens of SASL OAUTHBEARER, in each process.

A function cannot travel to other processes, such as Spark's executors; its name can. No text has a token, and none has what
a provider says when it fails, because that may hold a secret: the class of its error alone is shown.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from confluent_kafka import KafkaError

from kafka_ordered_ops.core.errors import AuthenticationError, BrokerUnreachableError, ConfigError
from kafka_ordered_ops.kafka.known_settings import AWS_MSK_IAM, TOKEN_PROVIDER, TOKEN_REGION

_SIGNER: Final = "aws_msk_iam_sasl_signer.MSKAuthTokenProvider"
#: What a provider's function takes, as a callback of confluent-kafka does.
_ARGUMENT: Final = "sasl.oauthbearer.config"
#: How long a client waits for its first token.
_TIMEOUT_S: Final = 10.0
#: A call that has not returned by then is given up; the next one takes another thread.
_ABANDONED_S: Final = 60.0
#: How long a token serves all clients of this process, and at most which share of its life: a window makes about ten clients.
_SHARED_S: Final = 60.0
_SHARED_PART: Final = 0.8
#: What RFC 6750 allows in a token, and RFC 7628 in an extension. The second begins all messages of it.
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_NAME: Final = re.compile(r"[A-Za-z]+")
_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")
#: Classes of libraries that do not inherit from Python's own errors of connections.
_AWAY: Final = re.compile("Timeout|Connection|ConnectError")


class NoTokensError(Exception):
    """These settings get no token, or not in a way that is known here."""


class _NoTokenMadeError(NoTokensError):
    """A provider failed; `is_away`: what it asked did not answer."""

    def __init__(self, text: str, *, is_away: bool) -> None:
        super().__init__(text)
        self.is_away = is_away


class _UnfitError(Exception):
    """What a provider lacks, in words of this package."""


@dataclass(frozen=True, slots=True, repr=False)
class Token:
    """A token; its text form would show it."""

    text: str
    #: Seconds since the epoch.
    expires_s: float
    extensions: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class _Call:
    """A call of a provider, and its token; every client of the process waits for the same one."""

    began_s: float
    future: Future[Token]

    def is_usable(self, now_s: float) -> bool:
        """Return whether to wait for it, or to take its token."""
        if not self.future.done():
            return now_s - self.began_s < _ABANDONED_S
        if self.future.exception() is not None:
            return False
        life_s = self.future.result().expires_s - self.began_s
        return now_s - self.began_s < min(_SHARED_S, _SHARED_PART * life_s)


#: By process, since a forked one has no threads of its parent, and what is asked.
_calls: dict[tuple[int, str, str, str], _Call] = {}


@dataclass(frozen=True, slots=True, repr=False)
class TokenProvider:
    """A provider, with its function. Its text form would show what the function takes."""

    name: str
    _make: Callable[[str], Any]
    _region: str
    _argument: str

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> TokenProvider | None:
        """Return the provider of a client's settings, if they name one. Raises `ConfigError` if it cannot be imported."""
        if (name := config.get(TOKEN_PROVIDER)) is None:
            return None
        region = config.get(TOKEN_REGION, "")
        make = _msk_iam(region) if name == AWS_MSK_IAM else _function(name)
        return cls(name, make, region, config.get(_ARGUMENT, ""))

    def fetch(self) -> Token:
        """Return a token that is still good. Raises `NoTokensError`, in 10 s at most."""
        key, now_s = (os.getpid(), self.name, self._region, self._argument), time.time()
        call = _calls.get(key)
        if call is None or not call.is_usable(now_s):
            call = _calls[key] = _Call(now_s, Future())
            threading.Thread(
                target=self._run, args=(call.future,), name="koo-token", daemon=True
            ).start()
        try:
            token = call.future.result(_TIMEOUT_S)
            if not token.expires_s > time.time():
                raise _UnfitError("its token has expired")
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises
            raise _NoTokenMadeError(
                f"the token provider {self.name} failed: {_reason(error)}",
                is_away=_is_away(error),
            ) from None
        return token

    def _run(self, future: Future[Token]) -> None:
        try:
            future.set_result(_token(self._make(self._argument)))
        except BaseException as error:  # noqa: BLE001 - who waits for it raises
            future.set_exception(error)


def with_tokens(config: Mapping[str, Any], report: Callable[[KafkaError], None]) -> dict[str, Any]:
    """Return a client's configuration that gets its tokens from the provider that it names, if it names one.

    The first token is made here, since the client would wait 10 s for a provider that fails, and not say why. Later failures
    are reported as the client's own.

    Raises `ConfigError`, `AuthenticationError`, and `BrokerUnreachableError` for a provider that is away.
    """
    provider = TokenProvider.of(config)
    kept = {
        key: value for key, value in config.items() if key not in (TOKEN_PROVIDER, TOKEN_REGION)
    }
    if provider is None:
        return kept
    try:
        provider.fetch()
    except _NoTokenMadeError as error:
        brokers = config.get("bootstrap.servers") or config.get("metadata.broker.list")
        cause = (
            BrokerUnreachableError(
                f"no token for {brokers}: {error}. Check that what it asks for tokens answers"
            )
            if error.is_away
            else AuthenticationError(
                f"no token for {brokers}: {error}. Call it in this environment to see the whole error"
            )
        )
        raise cause from None

    def callback(_: str | None) -> tuple[str, float, str, dict[str, str]]:
        try:
            token = provider.fetch()
        except NoTokensError as error:
            report(KafkaError(KafkaError._AUTHENTICATION, f"SASL OAUTHBEARER token: {error}"))
            raise
        # Brokers know the principal from the token.
        return token.text, token.expires_s, "", dict(token.extensions)

    return {**kept, "oauth_cb": callback}


def _msk_iam(region: str) -> Callable[[str], Any]:
    """Return what signs a token of Amazon MSK, with the credentials that AWS's own libraries find."""
    signer = _imported(_SIGNER, AWS_MSK_IAM, "install kafka-ordered-ops[aws-msk-iam]")

    def make(_: str) -> tuple[str, float]:
        try:
            text, expires_ms = signer.generate_auth_token(region)
        except AttributeError:
            # So the library fails where there are no credentials.
            raise _UnfitError("AWS's libraries find no credentials") from None
        return text, expires_ms / 1_000

    return make


def _function(name: str) -> Callable[[str], Any]:
    module, _, attribute = name.partition(":")
    function = getattr(
        _imported(module, name, "install it where this process runs"), attribute, None
    )
    if not callable(function):
        raise ConfigError(f"{TOKEN_PROVIDER}={name}: {module} has no function {attribute}")
    return function  # type: ignore[no-any-return]


def _imported(module: str, name: str, cure: str) -> Any:
    try:
        return import_module(module)
    except Exception as error:  # noqa: BLE001 - a module may raise anything
        raise ConfigError(
            f"{TOKEN_PROVIDER}={name}: {module} cannot be imported ({type(error).__name__}): {cure}"
        ) from None


def _token(made: Any) -> Token:
    """Return what a provider's function made, checked: (token, expiry), or (token, expiry, principal, extensions)."""
    with suppress(TypeError, ValueError, LookupError):
        text, expires_s, *more = made
        extensions = dict(more[1]) if len(more) > 1 else {}
        token = Token(text, float(expires_s), tuple(extensions.items()))
        if _TOKEN.fullmatch(text) and all(
            _NAME.fullmatch(key) and key != "auth" and _VALUE.fullmatch(value)
            for key, value in token.extensions
        ):
            return token
    raise _UnfitError(
        "it returned something else than a token and when it expires, in seconds since the epoch"
    )


def _reason(error: BaseException) -> str:
    if isinstance(error, _UnfitError):
        return str(error)
    kind = type(error)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _is_away(error: BaseException) -> bool:
    """Return whether the cause is a time-out or a connection."""
    return any(
        isinstance(one, TimeoutError | ConnectionError | socket.gaierror)
        or any(_AWAY.search(kind.__name__) for kind in type(one).__mro__)
        for one in _causes(error)
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen = set[int]()
    while id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__ or error
