"""Access tokens, and what each allows, from a file that only its owner can read.

The file has the hashes of the tokens: whoever reads it cannot use them. It is read again when it changes, so tokens are added and
revoked without a restart. A name may have two tokens, so that its clients move from the old to the new one in their own time.
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
from typing import Final

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.arguments import as_moment, check_text
from kafka_ordered_ops.core.errors import AccessDeniedError, ConfigError
from kafka_ordered_ops.core.strict_json import Fields, JsonError
from kafka_ordered_ops.relay.limits import TokenLimits, limits_json, limits_of
from kafka_ordered_ops.relay.rights import Access, Names, Verb

_LOG: Final = logging.getLogger(__name__)

#: Before every token, so that scanners for leaked secrets know it.
_PREFIX: Final = "koo_"
_TOKEN_BYTES: Final = 32
_FILE_BYTES_MAX: Final = 1024 * 1024
#: Each call compares its token with all of them.
_ENTRIES_MAX: Final = 256
#: The old and the new one.
_PER_NAME_MAX: Final = 2
#: How often the file is looked at, at most.
_LOOK_S: Final = 1.0
_NAME_LENGTH_MAX: Final = 128


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """One line of the tokens file."""

    access: Access
    sha256: str
    #: Milliseconds since the epoch; None: never.
    expires_ms: int | None

    def to_json(self) -> str:
        """Return the line."""
        access, expires = self.access, self.expires_ms
        return json.dumps(
            {
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
    """Make a token; return it, and its line of the file. Raises `ConfigError`."""
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
    """Add a line to the file, and return how many of the name's tokens expired, or made room for it.

    The file is created if it does not exist. Of two valid tokens of the name, the older one is removed.
    """
    old = read_entries(file) if os.path.lexists(file) else []
    now_ms = time.time_ns() // 1_000_000
    same = [one for one in old if one.access.name == entry.access.name]
    valid = [one for one in same if one.expires_ms is None or one.expires_ms > now_ms]
    kept = valid[-(_PER_NAME_MAX - 1) :]
    entries = [one for one in old if one not in same or one in kept] + [entry]
    _check(entries, file)
    # Beside it and renamed: a server never reads half of it.
    fresh = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.writelines(f"{one.to_json()}\n" for one in entries)
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise ConfigError(f"cannot write tokens to {file}: {error.strerror}") from error
    return len(same) - len(kept)


def read_entries(file: Path) -> list[TokenEntry]:
    """Read the file.

    Raises:
        ConfigError: it cannot be read, belongs to another user, others than its owner may open it, or a line is invalid.
    """
    try:
        # A pipe that nobody writes to would make the server wait.
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


def _check_owned(file: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"cannot read tokens from {file}: it is not a regular file")
    # Whoever owns it makes tokens. Root may do that anyway.
    if found.st_uid not in (0, os.geteuid()):
        raise ConfigError(
            f"the tokens file {file} belongs to the user with the id {found.st_uid}, and this process runs as "
            f"{os.geteuid()}: give the server a file of its own"
        )
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"others than its owner may open the tokens file {file} (mode {stat.S_IMODE(found.st_mode):o}): run chmod 600 on it"
        )


def _entry(line: bytes) -> TokenEntry:
    fields = Fields(strict_json.loads(line, limit_bytes=_FILE_BYTES_MAX), "token")
    name = check_text(fields.text("name"), what="name", length_max=_NAME_LENGTH_MAX)
    digest = fields.text("sha256")
    if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise JsonError("token.sha256 is not 64 hexadecimal digits")
    topics = Names(frozenset(fields.texts("topics")), "topic")
    groups = Names(frozenset(fields.texts("groups")), "group")
    try:
        verbs = frozenset(Verb(one) for one in fields.texts("verbs"))
    except ValueError as error:
        raise JsonError(f"token.verbs: {error}") from error
    limits = limits_of(TokenLimits, _object(fields.anything("limits")))
    expires = fields.text_or_none("expires")
    fields.done()
    expires_ms = (
        None
        if expires is None
        else round(as_moment(expires, what="token.expires").timestamp() * 1000)
    )
    return TokenEntry(Access(name, verbs, topics, groups, limits), digest, expires_ms)


def _object(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise JsonError("token.limits is not an object")
    return value


def _check(entries: list[TokenEntry], file: Path) -> None:
    if len(entries) > _ENTRIES_MAX:
        raise ConfigError(
            f"the tokens file {file} has {len(entries):,} tokens: at most {_ENTRIES_MAX} are allowed"
        )
    name, count = max(
        Counter(one.access.name for one in entries).items(), key=lambda one: one[1], default=("", 0)
    )
    if count > _PER_NAME_MAX:
        raise ConfigError(
            f"the tokens file {file} has {count} tokens of the name {name!r}: at most {_PER_NAME_MAX} are allowed, the old and "
            "the new one"
        )


class Tokens:
    """The tokens of a file, as it is now.

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
        """Return what a token allows; raise `AccessDeniedError` for an unknown or expired one."""
        now_s = self._clock()
        if now_s >= self._due_s:
            self._due_s = now_s + _LOOK_S
            self._read_again()
        digest = _hash(token)
        found: TokenEntry | None = None
        for entry in self._entries:
            # All of them, each in constant time: how long it takes reveals nothing.
            if hmac.compare_digest(entry.sha256, digest):
                found = entry
        if found is None:
            raise AccessDeniedError("the access token is unknown")
        if found.expires_ms is not None and found.expires_ms <= now_s * 1000:
            raise AccessDeniedError(f"the access token {found.access.name!r} has expired")
        return found.access

    def _read_again(self) -> None:
        seen = self._look()
        if seen == self._seen:
            return
        try:
            self._entries = read_entries(self._file)
        except ConfigError as error:
            # A bad edit must not lock everybody out; the same error again in a second is no news.
            _LOG.error("the tokens as they were before stay valid: %s", error)
        else:
            _LOG.info("the tokens file %s was read again", self._file)
        self._seen = seen

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns


def _hash(token: bytes) -> str:
    # A token is random and long: a slow hash, as passwords need, would protect nothing more.
    return hashlib.sha256(token).hexdigest()
