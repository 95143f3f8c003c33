"""What a caller may do: verbs, names of topics and groups, and limits."""

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
    """What a token allows. Each also allows to see status, groups and metrics."""

    READ = "read"
    #: Also cancel and extend; and its reads count as attempts.
    ACKNOWLEDGE = "acknowledge"
    #: Open windows.
    ADMIN = "admin"
    #: Nothing more than to see.
    DESCRIBE = "describe"


@dataclass(frozen=True, slots=True)
class Names:
    """Names of topics or groups: in full, or as a prefix that ends in ``*``, as in Kafka's ACLs.

    Args:
        patterns: the names; ``*`` alone is all names.
        what: what they are names of, for errors.

    Raises:
        ConfigError: there is none, or one cannot be a name.
    """

    patterns: frozenset[str]
    what: str

    def __post_init__(self) -> None:
        if not self.patterns:
            raise ConfigError(f"no {self.what} is named: name at least one, or '*' for all")
        for one in self.patterns:
            check_text(one, what=self.what, length_max=TEXT_CHARACTERS_MAX)
            if _WILDCARD in one[:-1]:
                raise ConfigError(f"the {self.what} {one!r} has a '*' that is not its end")

    @property
    def is_all(self) -> bool:
        """Whether every name is allowed."""
        return _WILDCARD in self.patterns

    def allow(self, name: str) -> bool:
        """Return whether a name is allowed."""
        return name in self.patterns or any(
            name.startswith(one[:-1]) for one in self.patterns if one.endswith(_WILDCARD)
        )


ALL_TOPICS: Final = Names(frozenset({_WILDCARD}), "topic")
ALL_GROUPS: Final = Names(frozenset({_WILDCARD}), "group")


@dataclass(frozen=True, slots=True)
class Access:
    """What one caller may do."""

    name: str
    verbs: frozenset[Verb]
    topics: Names
    groups: Names
    #: None: a caller without a token, who has no limits but the server's.
    limits: TokenLimits | None

    @property
    def is_whole(self) -> bool:
        """Whether it allows all topics and all groups."""
        return self.topics.is_all and self.groups.is_all

    @property
    def reader(self) -> Reader | None:
        """What the service must know of a caller who reads; None: no limits."""
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
        """Raise `AccessDeniedError` without this verb, or for a topic or group outside its own."""
        if verb not in self.verbs:
            raise AccessDeniedError(f"the token {self.name!r} does not allow {verb.value!r}")
        self.check_names(self.topics, topics)
        self.check_names(self.groups, groups)

    def check_names(self, allowed: Names, wanted: Iterable[str]) -> None:
        """Raise `AccessDeniedError` for a name outside the allowed ones."""
        for name in wanted:
            if not allowed.allow(name):
                raise AccessDeniedError(
                    f"the token {self.name!r} does not allow the {allowed.what} {name!r}"
                )

    def check_lease(self, lease_s: float) -> None:
        """Raise `AccessDeniedError` for a longer lease than it allows."""
        if self.limits is not None and lease_s > self.limits.lease_s_max:
            raise AccessDeniedError(
                f"the token {self.name!r} does not allow leases of {lease_s:g} s: ask for {self.limits.lease_s_max:g} s at most"
            )


#: Of a server without tokens.
EVERYTHING: Final = Access("anyone", frozenset(Verb), ALL_TOPICS, ALL_GROUPS, None)
