"""Access tokens and their rights, from a file that only its owner can read.

The file has only the hashes of the tokens, so its readers cannot use the tokens. It is read again when it changes, so
tokens are added and revoked without a restart. A name may have two tokens, so that its clients can move from the old to the
new one gradually.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import logging
import os
import secrets
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.arguments import as_moment, check_text
from kafka_ordered_ops.core.errors import AccessDeniedError, ConfigError
from kafka_ordered_ops.core.strict_json import JsonError, Stored, Text, Texts
from kafka_ordered_ops.relay.limits import TokenLimits, limits_json, limits_of
from kafka_ordered_ops.relay.rights import Access, Names, Verb

_LOG: Final = logging.getLogger(__name__)

#: Version of each line of the file.
_VERSION: Final = 1
#: The prefix of every token, by which scanners for leaked secrets recognize it.
_PREFIX: Final = "koo_"
_TOKEN_BYTES: Final = 32
_FILE_BYTES_MAX: Final = 1024 * 1024
#: Each call compares its token with all entries.
_ENTRIES_MAX: Final = 256
#: The old and the new token.
_PER_NAME_MAX: Final = 2
#: The shortest interval between two checks of the file.
_LOOK_S: Final = 1.0
_NAME_LENGTH_MAX: Final = 128


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """One line of the tokens file."""

    access: Access
    sha256: str
    #: Milliseconds since the epoch; None if the token does not expire.
    expires_ms: int | None

    def to_json(self) -> str:
        """Return the line of the file."""
        access, expires = self.access, self.expires_ms
        return json.dumps(
            {
                "version": _VERSION,
                "name": access.name,
                "sha256": self.sha256,
                "topics": sorted(access.topics.patterns),
                "groups": sorted(access.groups.patterns),
                "verbs": sorted(access.verbs),
                "limits": limits_json(access.limits or TokenLimits()),
                "expires": None
                if expires is None
                else datetime.fromtimestamp(expires / 1000, UTC).isoformat(),
            }
        )


def new_token(
    name: str,
    *,
    topics: Iterable[str],
    groups: Iterable[str],
    verbs: Iterable[Verb],
    limits: TokenLimits | None = None,
    expires_ms: int | None = None,
) -> tuple[str, TokenEntry]:
    """Create a token; return it and its line of the file. Raise `ConfigError`."""
    token = _PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    check_text(name, what="name", length_max=_NAME_LENGTH_MAX)
    access = Access(
        name,
        frozenset(verbs),
        Names(frozenset(topics), "topic"),
        Names(frozenset(groups), "group"),
        limits or TokenLimits(),
    )
    return token, TokenEntry(access, _hash(token.encode()), expires_ms)


def add_entry(file: Path, entry: TokenEntry) -> int:
    """Add a line to the file; return how many of the name's tokens were removed, expired ones included.

    The file is created if it does not exist. Of two valid tokens of the name, the older one is removed.
    """
    old = read_entries(file) if os.path.lexists(file) else []
    now_ms = time.time_ns() // 1_000_000
    same = [token for token in old if token.access.name == entry.access.name]
    valid = [token for token in same if token.expires_ms is None or token.expires_ms > now_ms]
    remaining = valid[-(_PER_NAME_MAX - 1) :]
    entries = [token for token in old if token not in same or token in remaining] + [entry]
    _check(entries, file)
    # A temporary file is renamed, so that a server never reads half of the file.
    fresh = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.writelines(f"{token.to_json()}\n" for token in entries)
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise ConfigError(f"cannot write tokens to {file}: {error.strerror}") from error
    return len(same) - len(remaining)


def read_entries(file: Path) -> list[TokenEntry]:
    """Read the file.

    Raises:
        ConfigError: the file cannot be read, belongs to another user, or is open to others; or a line is invalid.
    """
    try:
        # Non-blocking: opening a pipe without a writer would block the server.
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as source:
            _check_owned(file, os.fstat(source.fileno()))
            data = source.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read tokens from {file}: {error.strerror}") from error
    if len(data) > _FILE_BYTES_MAX:
        raise ConfigError(f"the tokens file {file} has more than {_FILE_BYTES_MAX:,} bytes")
    entries = []
    for number, line in enumerate(data.splitlines(), start=1):
        if line.strip():
            try:
                entries.append(_entry(line))
            except (JsonError, ConfigError) as error:
                raise ConfigError(f"line {number} of the tokens file {file}: {error}") from error
    _check(entries, file)
    return entries


def _check_owned(file: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"cannot read tokens from {file}: it is not a regular file")
    # The owner of the file can create tokens. Root can do that anyway.
    if status.st_uid not in (0, os.geteuid()):
        raise ConfigError(
            f"the tokens file {file} belongs to the user with the id {status.st_uid}, and this process runs as "
            f"{os.geteuid()}: give the server its own file"
        )
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"others than its owner may open the tokens file {file} (mode {stat.S_IMODE(status.st_mode):o}): run chmod 600 on it"
        )


def _entry(line: bytes) -> TokenEntry:
    stored = _Stored.parse(strict_json.loads(line, limit_bytes=_FILE_BYTES_MAX), "token")
    name = check_text(stored.name, what="name", length_max=_NAME_LENGTH_MAX)
    topics, groups = (
        Names(frozenset(stored.topics), "topic"),
        Names(frozenset(stored.groups), "group"),
    )
    limits, expires = limits_of(TokenLimits, stored.limits), stored.expires
    expires_ms = (
        None
        if expires is None
        else round(as_moment(expires, what="token.expires").timestamp() * 1000)
    )
    return TokenEntry(Access(name, stored.verbs, topics, groups, limits), stored.sha256, expires_ms)


class _Stored(Stored, frozen=True):
    what = "the token"

    version: Literal[1]
    name: Text
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    topics: Texts
    groups: Texts
    verbs: frozenset[Verb]
    limits: dict[str, Any]
    expires: Text | None


def _check(entries: list[TokenEntry], file: Path) -> None:
    if len(entries) > _ENTRIES_MAX:
        raise ConfigError(
            f"the tokens file {file} has {len(entries):,} tokens: at most {_ENTRIES_MAX} are allowed"
        )
    name, count = max(
        Counter(entry.access.name for entry in entries).items(),
        key=lambda pair: pair[1],
        default=("", 0),
    )
    if count > _PER_NAME_MAX:
        raise ConfigError(
            f"the tokens file {file} has {count} tokens of the name {name!r}: at most {_PER_NAME_MAX} are allowed, the old and "
            "the new one"
        )


class Tokens:
    """The current tokens of a file.

    Args:
        file: the file; it is read at once.
        clock: seconds since 1970.
    """

    def __init__(self, file: Path, clock: Callable[[], float] = time.time) -> None:
        self._file, self._clock = file, clock
        self._seen = self._look()
        self._entries = read_entries(file)
        self._due_s = clock() + _LOOK_S

    def access_of(self, token: bytes) -> Access:
        """Return the rights of a token; raise `AccessDeniedError` for an unknown or expired token."""
        now_s = self._clock()
        if now_s >= self._due_s:
            self._due_s = now_s + _LOOK_S
            self._read_again()
        digest = _hash(token)
        match: TokenEntry | None = None
        for entry in self._entries:
            # Compare with all entries, each in constant time, so that the time reveals nothing.
            if hmac.compare_digest(entry.sha256, digest):
                match = entry
        if match is None:
            raise AccessDeniedError("the access token is unknown")
        if match.expires_ms is not None and match.expires_ms <= now_s * 1000:
            raise AccessDeniedError(f"the access token {match.access.name!r} has expired")
        return match.access

    def _read_again(self) -> None:
        seen = self._look()
        if seen == self._seen:
            return
        try:
            self._entries = read_entries(self._file)
        except ConfigError as error:
            # An invalid edit must not lock everybody out. The same error is not logged again.
            _LOG.error("the previous tokens stay valid: %s", error)
        else:
            _LOG.info("the tokens file %s was read again", self._file)
        self._seen = seen

    def _look(self) -> tuple[int, int, int] | None:
        try:
            status = self._file.stat()
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns


def _hash(token: bytes) -> str:
    # A token is long and random: a slow hash, as for passwords, would not add protection.
    return hashlib.sha256(token).hexdigest()
