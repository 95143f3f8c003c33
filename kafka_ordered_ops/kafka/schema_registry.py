"""The one door to a schema registry: schemas by id, and the newest of a subject."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Final

from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.errors import (
    AuthenticationError,
    ConfigError,
    KafkaOrderedOpsError,
    RegistryError,
    SettingNotAllowedError,
)
from kafka_ordered_ops.core.masked import masked
from kafka_ordered_ops.core.strict_json import PARSER_ERRORS
from kafka_ordered_ops.kafka.known_settings import ALLOWED_REGISTRY
from kafka_ordered_ops.kafka.registry.glue import GLUE, GlueClient
from kafka_ordered_ops.kafka.registry.schemas import RegisteredSchema as RegisteredSchema
from kafka_ordered_ops.kafka.registry.schemas import SchemaClient as SchemaClient
from kafka_ordered_ops.kafka.settings import ClientSettings

#: For one request. The client tries it up to four times.
_TIMEOUT_S: Final = 10
_REFERENCES_MAX: Final = 200
#: A registry's codes for a subject, a version and a schema that it does not have.
_NOT_FOUND: Final = frozenset({40401, 40402, 40403})


@dataclass(frozen=True, slots=True, repr=False)
class Registry:
    """How to reach a schema registry.

    Args:
        settings: a URL, several separated by commas, or the settings of Confluent's client: ``url``,
            ``basic.auth.user.info``, ``bearer.auth.*``, ``ssl.*``. For AWS Glue ``glue://REGION`` or ``glue://REGION/REGISTRY``,
            and nothing else.

    Raises:
        ConfigError: there is no URL.
        SettingNotAllowedError: another setting.
    """

    settings: Mapping[str, str]

    def __init__(self, settings: str | Mapping[str, str]) -> None:
        mapping: Any = {"url": settings} if isinstance(settings, str) else settings
        if not isinstance(mapping, Mapping) or not isinstance(mapping.get("url"), str):
            raise ConfigError(
                f"registry is {shown(masked(settings))}: give its URL, or settings with 'url'"
            )
        for key, value in mapping.items():
            if key not in ALLOWED_REGISTRY:
                raise SettingNotAllowedError(
                    f"the registry setting {key!r} is not allowed: use one of {', '.join(sorted(ALLOWED_REGISTRY))}",
                    key=key,
                )
            if not isinstance(value, str):
                raise ConfigError(
                    f"the registry setting {key!r} is a {type(value).__name__}: give text"
                )
        others = sorted(mapping.keys() - {"url"})
        if others and mapping["url"].startswith(GLUE):
            raise ConfigError(
                f"AWS Glue's schema registry has no settings {', '.join(others)}: leave them out. Credentials come from the environment"
            )
        object.__setattr__(self, "settings", dict(mapping))

    def __repr__(self) -> str:
        hidden = {name: "***" for name in self.settings if name.startswith(("basic.", "bearer."))}
        return f"Registry({masked({**self.settings, **hidden, 'url': self.shown_url})!r})"

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.settings.items())))

    @property
    def shown_url(self) -> str:
        """The URLs without user names and passwords."""
        urls = self.settings["url"].split(",")
        return ",".join(
            f"{scheme}{slashes}{rest.rpartition('@')[2]}"
            for scheme, slashes, rest in (url.strip().partition("://") for url in urls)
        )

    @classmethod
    def of(cls, settings: ClientSettings) -> Registry | None:
        """Return the registry that client settings name, if they do; raises like the constructor."""
        return cls(found) if (found := settings.registry) else None

    def connect(self) -> SchemaClient:
        """Return a client; raise `ConfigError` for invalid settings, or if the extra is not installed."""
        url = self.settings["url"]
        return GlueClient(url) if url.startswith(GLUE) else RegistryClient(self)


class RegistryClient(SchemaClient):
    """Schemas of a registry with Confluent's API. Pickling includes the known ones, and the credentials."""

    def __init__(
        self,
        registry: Registry,
        known: Mapping[int, RegisteredSchema | None] | None = None,
        ids: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(known, ids)
        self._registry = registry
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
        except ImportError as error:
            raise ConfigError(
                f"a schema registry needs {error.name}: pip install 'kafka-ordered-ops[registry]'"
            ) from None
        self._where = f"schema registry {registry.shown_url}"
        self._settings = {**registry.settings, "timeout": _TIMEOUT_S}
        self._client_class = SchemaRegistryClient
        try:
            with SchemaRegistryClient(self._settings):
                pass
        except (ValueError, TypeError, OSError) as error:
            raise ConfigError(f"{self._where}: {error}") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return RegistryClient, (self._registry, self._known, self._ids)

    def subject_of(self, topic: str, part: str) -> str:
        """Return the name of Confluent's default strategy."""
        return f"{topic}-{part}"

    def learn(
        self, subject: str, stored: Callable[[RegisteredSchema], RegisteredSchema] | None = None
    ) -> None:
        """Read all versions of a subject; see `SchemaClient`."""
        for number in self._ask(lambda client: client.get_versions(subject)) or ():
            version = self._ask(partial(_version, subject, number))
            if version is None:
                continue
            known = self._known.get(version.schema_id)
            schema = known or self._registered(version.schema_id, version.schema)
            self._known[version.schema_id] = schema if stored is None else stored(schema)
            if version.guid:
                self._ids[version.guid] = version.schema_id

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """Return the schema of an id; see `SchemaClient`."""
        if schema_id not in self._known:
            schema = self._ask(lambda client: client.get_schema(schema_id))
            registered = None if schema is None else self._registered(schema_id, schema)
            self._known[schema_id] = registered
        return self._known[schema_id]

    def check(self) -> None:
        """Ask for a schema; see `SchemaClient`."""
        self._ask(lambda client: client.get_schema(1))

    def _by_guid(self, guid: str) -> RegisteredSchema | None:
        # Registries without GUIDs have no such path.
        schema = self._ask(lambda client: client.get_schema_by_guid(guid), may_lack_path=True)
        return None if schema is None else self._registered(0, schema)

    def newest(self, subject: str) -> RegisteredSchema:
        """Return the newest schema of a subject; raises like `schema`, and `ConfigError` for an unknown subject."""
        version = self._ask(lambda client: client.get_latest_version(subject))
        if version is None:
            raise ConfigError(
                f"{self._where} has no subject {shown(subject)}: register its schema, or give subject="
            )
        registered = self._registered(version.schema_id, version.schema)
        self._known[registered.schema_id] = registered
        return registered

    def _registered(self, schema_id: int, schema: Any) -> RegisteredSchema:
        references: dict[tuple[str, str, int], str] = {}
        self._add_references(schema, references)
        named = tuple((name, text) for (name, _, _), text in references.items())
        return RegisteredSchema(schema_id, schema.schema_type or "AVRO", schema.schema_str, named)

    def _add_references(self, schema: Any, references: dict[tuple[str, str, int], str]) -> None:
        """Add the schemas that a schema uses, those that they use first."""
        for reference in schema.references or ():
            key = (reference.name, reference.subject, reference.version)
            if key in references:
                continue
            if len(references) >= _REFERENCES_MAX:
                raise ConfigError(
                    f"{self._where}: a schema has more than {_REFERENCES_MAX} references"
                )
            version = self._ask(partial(_version, *key[1:]))
            if version is None:
                raise ConfigError(
                    f"{self._where} has no version {key[2]} of subject {shown(key[1])}"
                )
            self._add_references(version.schema, references)
            references[key] = version.schema.schema_str

    def _ask(self, request: Callable[[Any], Any], *, may_lack_path: bool = False) -> Any:
        """Return the answer; None for what the registry does not have."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            # Requests are few, and nobody says when the last one was made.
            with self._client_class(self._settings) as client:
                return _checked(request(client))
        except SchemaRegistryError as error:
            if error.http_status_code == 404:
                if may_lack_path or error.error_code in _NOT_FOUND:
                    return None
                raise RegistryError(
                    f"{self._where} answers with HTTP 404, and not as a registry does: give the URL of its API, with its path, "
                    "which is /apis/ccompat/v7 in Apicurio"
                ) from None
            if error.http_status_code in (401, 403):
                raise AuthenticationError(
                    f"{self._where} refuses the credentials: HTTP {error.http_status_code}"
                ) from None
            raise RegistryError(
                f"{self._where} answers with HTTP {error.http_status_code}: {error.error_message}"
            ) from None
        except KafkaOrderedOpsError:
            raise
        except PARSER_ERRORS as error:
            raise RegistryError(
                f"{self._where}: the answer is not a schema registry's ({type(error).__name__}: {shown(error)}). Check the URL, and "
                "whether a proxy or a login page answers for it"
            ) from error
        except Exception as error:
            # The HTTP client's own errors; which library that is differs between versions of confluent-kafka.
            raise RegistryError(f"{self._where} cannot be reached: {error}") from error


def _checked(answer: Any) -> Any:
    """Return an answer; raise `TypeError` unless its fields, which Confluent's client does not check, have their types."""
    if isinstance(answer, list):
        _check_types((version, int) for version in answer)
    elif answer is not None:
        schema = getattr(answer, "schema", answer)
        _check_types([(schema.schema_str, str), (schema.schema_type or "AVRO", str)])
        for reference in schema.references or ():
            named = (reference.name, str), (reference.subject, str), (reference.version, int)
            _check_types(named)
        if schema is not answer:
            _check_types([(answer.schema_id, int), (answer.guid or "", str)])
    return answer


def _check_types(values: Iterable[tuple[Any, type]]) -> None:
    for value, kind in values:
        if type(value) is not kind:
            raise TypeError(f"{shown(value)} is no {kind.__name__}")


def _version(subject: str, version: int, client: Any) -> Any:
    return client.get_version(subject, version)


def bundled_file(name: str) -> bytes | None:
    """Return a Protobuf file of Confluent, ``confluent/meta.proto`` for example, that schemas import without a reference.

    As bytes of its ``FileDescriptorProto``; None if the client does not bring it.
    """
    module = name.removesuffix(".proto").replace("/", ".") + "_pb2"
    try:
        descriptor = import_module(f"confluent_kafka.schema_registry.{module}").DESCRIPTOR
    except ImportError:
        return None
    content: bytes = descriptor.serialized_pb
    return content
