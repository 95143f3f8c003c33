"""The client of AWS Glue's schema registry; the one door to boto3."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import UUID

from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.errors import AuthenticationError, ConfigError, RegistryError
from kafka_ordered_ops.kafka.registry.schemas import RegisteredSchema, SchemaClient

#: What the URL of such a registry begins with; the region and, if it is not the default one, the registry's name follow.
GLUE: Final = "glue://"
_URL: Final = re.compile(r"glue://([a-z0-9-]{1,63})(?:/([A-Za-z0-9_.$#-]{1,255}))?")
_DEFAULT_NAME: Final = "default-registry"
#: For one request.
_TIMEOUT_S: Final = 10
_ATTEMPTS_MAX: Final = 4
#: Versions of a schema that travel to tasks, the newest ones.
_LEARNED_MAX: Final = 50
#: Error codes of AWS for credentials that are missing, invalid, expired, or without the right.
_REFUSED: Final = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "NotAuthorized",
        "OptInRequired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)


class GlueClient(SchemaClient):
    """Schemas of a registry of AWS Glue. A subject is the name of a schema there. Pickling includes the known ones.

    Args:
        url: ``glue://REGION`` or ``glue://REGION/REGISTRY``. The credentials are those of the process.
        known: the schemas that are known, by their numbers.
        ids: the numbers, by GUIDs.

    Raises:
        ConfigError: another URL, or boto3 is not installed.
    """

    is_glue = True

    def __init__(
        self,
        url: str,
        known: Mapping[int, RegisteredSchema | None] | None = None,
        ids: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(known, ids)
        match = _URL.fullmatch(url)
        if match is None:
            raise ConfigError(
                f"the URL of the schema registry is {shown(url)}: for AWS Glue give glue://REGION or glue://REGION/REGISTRY"
            )
        self._url = url
        self._region, self._name = match[1], match[2] or _DEFAULT_NAME
        self._where = f"AWS Glue's schema registry {self._name} in {self._region}"
        self._client: Any = None
        if known is None:
            # A copy in a task may know all that it needs.
            _boto3()

    def __reduce__(self) -> tuple[Any, ...]:
        return GlueClient, (self._url, self._known, self._ids)

    def subject_of(self, topic: str, part: str) -> str:
        """Return the topic, after which Glue's serializers name schemas of values and of keys."""
        return topic

    def newest(self, subject: str) -> RegisteredSchema:
        """Return the newest version of a schema; raises like `schema`, and `ConfigError` for an unknown one."""
        answer = self._newest(subject)
        if answer is None:
            raise ConfigError(
                f"{self._where} has no schema {shown(subject)}: register it, or give subject="
            )
        return self._registered(answer)

    def learn(
        self, subject: str, stored: Callable[[RegisteredSchema], RegisteredSchema] | None = None
    ) -> None:
        """Read the newest versions of a schema; see `SchemaClient`."""
        answer = self._newest(subject)
        if answer is None:
            return
        self._registered(answer, stored)
        greatest = int(answer["VersionNumber"])
        for number in range(greatest - 1, max(greatest - _LEARNED_MAX, 0), -1):
            answer = self._ask(self._of_subject(subject, VersionNumber=number))
            if answer is not None:
                self._registered(answer, stored)

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """Return a schema by the number that `id_of` has returned."""
        return self._known[schema_id]

    def check(self) -> None:
        """Ask for a schema; see `SchemaClient`."""
        self._ask({"SchemaVersionId": str(UUID(int=0))})

    def _by_guid(self, guid: str) -> RegisteredSchema | None:
        answer = self._ask({"SchemaVersionId": guid})
        return None if answer is None else _schema_of(answer)

    def _newest(self, subject: str) -> dict[str, Any] | None:
        return self._ask(self._of_subject(subject, LatestVersion=True))

    def _of_subject(self, subject: str, **version: Any) -> dict[str, Any]:
        return {
            "SchemaId": {"RegistryName": self._name, "SchemaName": subject},
            "SchemaVersionNumber": version,
        }

    def _registered(
        self,
        answer: Mapping[str, Any],
        stored: Callable[[RegisteredSchema], RegisteredSchema] | None = None,
    ) -> RegisteredSchema:
        schema = _schema_of(answer)
        self._keep(str(answer["SchemaVersionId"]), schema if stored is None else stored(schema))
        return schema

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the answer of ``GetSchemaVersion``; None for what the registry does not have."""
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            CredentialRetrievalError,
            NoCredentialsError,
            PartialCredentialsError,
        )

        try:
            answer: dict[str, Any] = self._connected().get_schema_version(**question)
            return answer
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if code == "EntityNotFoundException":
                return None
            if code in _REFUSED:
                raise AuthenticationError(
                    f"{self._where} refuses the credentials: {error}. They need the right glue:GetSchemaVersion"
                ) from None
            raise RegistryError(f"{self._where} fails: {error}") from None
        except (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError) as error:
            raise AuthenticationError(
                f"{self._where}: there are no credentials of AWS: {error}"
            ) from None
        except BotoCoreError as error:
            raise RegistryError(f"{self._where} cannot be reached: {error}") from error

    def _connected(self) -> Any:
        """Return the client of boto3, which takes a tenth of a second to make."""
        with self._lock:
            if self._client is None:
                boto3 = _boto3()
                from botocore.config import Config

                config = Config(
                    connect_timeout=_TIMEOUT_S,
                    read_timeout=_TIMEOUT_S,
                    retries={"mode": "standard", "total_max_attempts": _ATTEMPTS_MAX},
                )
                session = boto3.Session(region_name=self._region)
                self._client = session.client("glue", config=config)
            return self._client


def _boto3() -> Any:
    """Return boto3; raise `ConfigError` if it is not installed."""
    try:
        import boto3
    except ImportError as error:
        raise ConfigError(
            f"AWS Glue's schema registry needs {error.name}: pip install 'kafka-ordered-ops[aws-glue]'"
        ) from None
    return boto3


def _schema_of(answer: Mapping[str, Any]) -> RegisteredSchema:
    return RegisteredSchema(0, str(answer["DataFormat"]), str(answer["SchemaDefinition"]))
