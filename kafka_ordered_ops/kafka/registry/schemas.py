"""Registered schemas, and what clients of every registry have in common."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

#: Ids of registries are positive numbers of 32 bits with a sign, and have 32 bits in front of values.
_REGISTRY_ID_MAX: Final = 2**31 - 1
_ID_MAX: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as registered."""

    schema_id: int
    #: ``AVRO``, ``PROTOBUF`` or ``JSON``.
    kind: str
    text: str
    #: The schemas that it uses, in the order of their dependencies: the name that it has for each, and its text.
    references: tuple[tuple[str, str], ...] = ()

    @property
    def reference_texts(self) -> tuple[str, ...]:
        """The schemas that it uses, each once, whatever they are called."""
        return tuple(dict.fromkeys(text for _, text in self.references))


class SchemaClient(ABC):
    """Schemas of a registry; one by id never changes, and is kept."""

    #: Whether its ids are those in the frames of AWS Glue.
    is_glue = False

    def __init__(
        self,
        known: Mapping[int, RegisteredSchema | None] | None = None,
        ids: Mapping[str, int] | None = None,
    ) -> None:
        self._known = dict(known or {})
        #: By GUID.
        self._ids = dict(ids or {})
        self._lock = threading.Lock()

    @abstractmethod
    def subject_of(self, topic: str, part: str) -> str:
        """Return the subject in which serializers register schemas for ``value`` or ``key`` of a topic, by default."""

    @abstractmethod
    def newest(self, subject: str) -> RegisteredSchema:
        """Return the newest schema of a subject; raises like `schema`, and `ConfigError` for an unknown subject."""

    @abstractmethod
    def learn(
        self, subject: str, stored: Callable[[RegisteredSchema], RegisteredSchema] | None = None
    ) -> None:
        """Read the versions of a subject, so that this object, and copies of it, need no registry for them.

        Args:
            subject: whose versions.
            stored: returns what to keep of a schema.
        """

    @abstractmethod
    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """Return the schema of an id; None if the registry does not have it.

        Raises:
            RegistryError: it cannot be reached, or fails.
            AuthenticationError: it refuses the credentials.
        """

    @abstractmethod
    def check(self) -> None:
        """Ask for a schema that need not exist; raise as `schema` does."""

    @abstractmethod
    def _by_guid(self, guid: str) -> RegisteredSchema | None:
        """Return the schema of a GUID, whatever its id; None if the registry does not have it; raises like `schema`."""

    def id_of(self, guid: str) -> int:
        """Return the number by which `schema` knows the schema of a GUID; raises like `schema`.

        It is the schema's id if that is known, and else one that no registry has.
        """
        if guid not in self._ids:
            self._keep(guid, self._by_guid(guid))
        return self._ids[guid]

    def _keep(self, guid: str, schema: RegisteredSchema | None) -> None:
        """Keep the schema of a GUID under a number that no registry has."""
        with self._lock:
            number = self._ids.setdefault(guid, _ID_MAX - len(self._ids))
            self._known[number] = schema if schema is None else replace(schema, schema_id=number)

    def name(self, schema_id: int) -> str:
        """Return an id as text: the GUID that stands for it, if it is none of a registry."""
        guids = (guid for guid, number in self._ids.items() if number == schema_id)
        return next(guids, str(schema_id)) if schema_id > _REGISTRY_ID_MAX else str(schema_id)
