"""The rights of a caller: verbs, names of topics and groups, and limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kafka_ordered_ops.core.arguments import check_text
from kafka_ordered_ops.core.errors import AccessDeniedError, ConfigError
from kafka_ordered_ops.core.relay.log_records import TEXT_CHARACTERS_MAX
from kafka_ordered_ops.relay.limits import TokenLimits
from kafka_ordered_ops.relay.ports import Reader

_WILDCARD: Final = "*"


class Verb(StrEnum):
    """A right of a token. Each verb also allows the token to see status, groups and metrics."""

    READ = "read"
    #: Also allows cancel and extend, and makes reads count as attempts.
    ACKNOWLEDGE = "acknowledge"
    #: Open windows.
    ADMIN = "admin"
    #: See status, groups and metrics only.
    DESCRIBE = "describe"


@dataclass(frozen=True, slots=True)
class Names:
    """Names of topics or groups: full names, or prefixes that end in ``*``, as in Kafka's ACLs.

    Args:
        patterns: the names; ``*`` alone matches all names.
        what: the kind of the names, for errors.

    Raises:
        ConfigError: there is no name, or a name is invalid.
    """

    patterns: frozenset[str]
    what: str

    def __post_init__(self) -> None:
        if not self.patterns:
            raise ConfigError(f"no {self.what} is named: name at least one, or '*' for all")
        for pattern in self.patterns:
            check_text(pattern, what=self.what, length_max=TEXT_CHARACTERS_MAX)
            if _WILDCARD in pattern[:-1]:
                raise ConfigError(f"the {self.what} {pattern!r} has a '*' that is not its end")

    @property
    def is_all(self) -> bool:
        """Whether every name is allowed."""
        return _WILDCARD in self.patterns

    def allow(self, name: str) -> bool:
        """Return whether a name is allowed."""
        return name in self.patterns or any(
            name.startswith(pattern[:-1])
            for pattern in self.patterns
            if pattern.endswith(_WILDCARD)
        )


ALL_TOPICS: Final = Names(frozenset({_WILDCARD}), "topic")
ALL_GROUPS: Final = Names(frozenset({_WILDCARD}), "group")


@dataclass(frozen=True, slots=True)
class Access:
    """The rights of one caller."""

    name: str
    verbs: frozenset[Verb]
    topics: Names
    groups: Names
    #: None for a caller without a token, which has only the server's limits.
    limits: TokenLimits | None

    @property
    def is_whole(self) -> bool:
        """Whether it allows all topics and all groups."""
        return self.topics.is_all and self.groups.is_all

    @property
    def reader(self) -> Reader | None:
        """The caller as a reader of the service; None without limits."""
        if self.limits is None:
            return None
        return Reader(
            self.name,
            counts=Verb.ACKNOWLEDGE in self.verbs,
            pending_max=self.limits.pending_max,
            groups_max=self.limits.groups_max,
            windows_max=self.limits.windows_max,
        )

    def check(self, verb: Verb, *, topics: Iterable[str] = (), groups: Iterable[str] = ()) -> None:
        """Raise `AccessDeniedError` for a missing verb, or for a topic or group that is not allowed."""
        if verb not in self.verbs:
            raise AccessDeniedError(f"the token {self.name!r} does not allow {verb.value!r}")
        self.check_names(self.topics, topics)
        self.check_names(self.groups, groups)

    def check_names(self, allowed: Names, names: Iterable[str]) -> None:
        """Raise `AccessDeniedError` for a name outside the allowed ones."""
        for name in names:
            if not allowed.allow(name):
                raise AccessDeniedError(
                    f"the token {self.name!r} does not allow the {allowed.what} {name!r}"
                )

    def check_lease(self, lease_s: float) -> None:
        """Raise `AccessDeniedError` for a lease that is longer than allowed."""
        if self.limits is not None and lease_s > self.limits.lease_s_max:
            raise AccessDeniedError(
                f"the token {self.name!r} does not allow leases of {lease_s:g} s: ask for {self.limits.lease_s_max:g} s at most"
            )


#: The rights of all callers of a server without tokens.
EVERYTHING: Final = Access("anyone", frozenset(Verb), ALL_TOPICS, ALL_GROUPS, None)
