"""Airflow's connections of object stores as storage options.

The fields are those of the providers' hooks. Keys, tokens and settings are read from the fields directly, with no
provider installed. Fields that need a hook (a role, a profile, impersonation) use the provider's hook, whose
credentials refresh themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from kafka_ordered_ops.airflow.compat import BaseHook, mask
from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import ConfigError, SinkError
from kafka_ordered_ops.output.objects.credentials import aws_credentials, google_credentials

#: By the scheme of an output, the types of connections for it.
_TYPES: Final = {
    "s3": ("aws", "s3"),
    "gs": ("google_cloud_platform",),
    "abfss": ("wasb", "adls", "azure_data_lake"),
}

#: Fields that only a provider's hook can turn into credentials.
_NEEDS_AWS: Final = ("role_arn", "profile_name")
_NEEDS_GOOGLE: Final = (
    "impersonation_chain",
    "key_secret_name",
    "credential_config_file",
    "idp_issuer_url",
)


def storage_options_of(conn_id: str, scheme: str, *, travels: bool) -> dict[str, Any]:
    """Return the storage options of a connection; its secrets are masked in the task's log.

    Args:
        conn_id: the connection.
        scheme: the output's scheme: ``s3``, ``gs`` or ``abfss``.
        travels: whether the options are sent to another process: a role's credentials are then the current ones, and
            expire with their session.

    Raises:
        AirflowNotFoundException: there is no such connection.
        ConfigError: it has another type, invalid fields, or fields whose provider is not installed.
        SinkError: the provider's hook returned no credentials.
    """
    conn = BaseHook.get_connection(conn_id)
    kind = str(conn.conn_type or _TYPES[scheme][0])
    if kind not in _TYPES[scheme]:
        raise ConfigError(
            f"connection {conn_id} is of type {conn.conn_type!r}, but the output is in {scheme}://: use a connection "
            f"of type {' or '.join(_TYPES[scheme])}"
        )
    extra = conn.extra_dejson
    if not isinstance(extra, Mapping):
        raise ConfigError(
            f"connection {conn_id}: extra is a JSON {type(extra).__name__}, not an object of settings"
        )
    fields = _Fields(conn_id, kind, extra, conn)
    try:
        options = _OPTIONS[scheme](fields, travels)
    except ConfigError:
        raise
    except ValueError:
        raise ConfigError(
            f"connection {conn_id}: the account's address is not a valid URL"
        ) from None
    for secret in (conn.password, *_texts(options)):
        if secret and secret not in _HARMLESS:
            mask(secret)
    return options


def _texts(options: Mapping[str, Any]) -> list[str]:
    return [value for name, value in options.items() if isinstance(value, str) and _is_secret(name)]


def _is_secret(name: str) -> bool:
    return any(
        word in name for word in ("secret", "token", "sas", "service_account_key", "proxy")
    ) or (name == "account_key")


#: A service account's key has about 2,400 characters.
_KEY_BYTES_MAX: Final = 64 * 1024

#: Text that cannot be a secret, whatever its key: masking it would remove the word from every log line.
_HARMLESS: Final = frozenset({"true", "false"})


_PUBLIC_BLOBS: Final = "blob.core.windows.net"

#: Azure's emulator on this machine, with its only account. The key is public.
_EMULATOR: Final = {"account_name": "devstoreaccount1", "use_emulator": "true"}


class _Fields:
    """The fields of a connection, also under the names of older forms."""

    def __init__(self, conn_id: str, kind: str, extra: Mapping[str, Any], conn: Any) -> None:
        self.conn_id, self.kind, self._extra, self.conn = conn_id, kind, extra, conn

    def __getitem__(self, name: str) -> Any:
        """Return a field of the extra; None if it is missing, or empty as forms save it."""
        value = self._extra.get(name)
        if value in (None, ""):
            value = self._extra.get(f"extra__{self.kind}__{name}")
        return None if value == "" else value

    def mapping(self, name: str, inner: str | None = None) -> Mapping[str, Any]:
        """Return a field that is a JSON object, or an object in it; raise `ConfigError` for another type."""
        section = (self[name] if inner is None else self.mapping(name).get(inner)) or {}
        if not isinstance(section, Mapping):
            raise ConfigError(
                f"connection {self.conn_id}: {'.'.join(filter(None, (name, inner)))} is a {type(section).__name__}, not an "
                "object"
            )
        return section

    @contextmanager
    def provider(self, package: str) -> Iterator[None]:
        """Replace the errors of a provider's hook by one that names the connection: their text may hold a secret.

        A hook raises its library's errors, some of which mean that the service is unavailable: the host may retry.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the libraries' errors have no common class
            raise SinkError(
                f"connection {self.conn_id}: the hook of {package} returned no credentials ({type(error).__name__}). Test the "
                "connection on this worker"
            ) from None

    def is_on(self, name: str) -> bool:
        """Return whether a field is true, as JSON or as form text."""
        return str(self[name]).lower() in ("true", "1")

    def lacks(self, names: tuple[str, ...], provider: str) -> ConfigError:
        """Return the error for fields whose provider is not installed."""
        present = ", ".join(name for name in names if self[name])
        return ConfigError(
            f"connection {self.conn_id} has {present}, which needs its provider's hook: install {provider}"
        )


# --- Amazon --------------------------------------------------------------------------------------


def _s3(fields: _Fields, travels: bool) -> dict[str, Any]:
    """Read the fields as `AwsConnectionWrapper` does."""
    conn, service = fields.conn, fields.mapping("service_config", "s3")
    config, older = fields.mapping("config_kwargs"), fields.mapping("session_kwargs")
    proxies = fields.mapping("config_kwargs", "proxies")
    options = {
        "aws_region": fields["region_name"] or config.get("region_name"),
        "aws_endpoint": service.get("endpoint_url") or fields["endpoint_url"],
        "proxy_url": proxies.get("https") or proxies.get("http"),
        **_certificates(fields),
    }
    if fields.mapping("config_kwargs", "s3").get("addressing_style") == "virtual":
        options["aws_virtual_hosted_style_request"] = "true"
    if config.get("signature_version") == "unsigned":
        options["aws_skip_signature"] = "true"
    elif any(fields[name] for name in _NEEDS_AWS):
        options |= _aws_session(fields, options, travels)
    else:
        # As for the hook, an incomplete pair does not count.
        pairs = (
            (conn.login, conn.password),
            (fields["aws_access_key_id"], fields["aws_secret_access_key"]),
            (older.get("aws_access_key_id"), older.get("aws_secret_access_key")),
        )
        key, secret = next(filter(all, pairs), (None, None))
        options |= {
            "aws_access_key_id": key,
            "aws_secret_access_key": secret,
            "aws_session_token": fields["aws_session_token"] or older.get("aws_session_token"),
        }
    return _without_empty(options)


def _certificates(fields: _Fields) -> dict[str, Any]:
    verify = fields["verify"]
    if verify in (False, "false", "False"):
        return {"allow_invalid_certificates": "true"}
    if not isinstance(verify, str) or verify.lower() == "true":
        return {}
    try:
        with open(verify, encoding="utf-8") as file:
            return {"root_certificate": file.read()}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"connection {fields.conn_id}: verify is not a readable certificate file on this worker "
            f"({type(error).__name__})"
        ) from None


def _aws_session(fields: _Fields, options: Mapping[str, Any], travels: bool) -> dict[str, Any]:
    try:
        from airflow.providers.amazon.aws.hooks.s3 import S3Hook
    except ImportError:
        raise fields.lacks(_NEEDS_AWS, "apache-airflow-providers-amazon") from None

    with fields.provider("apache-airflow-providers-amazon"):
        session = S3Hook(aws_conn_id=fields.conn_id).get_session()
        region = {"aws_region": options["aws_region"] or session.region_name}
        if not travels:
            return {"credential_provider": aws_credentials(session), **region}
        keys = session.get_credentials().get_frozen_credentials()
        return {
            "aws_access_key_id": keys.access_key,
            "aws_secret_access_key": keys.secret_key,
            "aws_session_token": keys.token,
            **region,
        }


# --- Google --------------------------------------------------------------------------------------


def _gs(fields: _Fields, travels: bool) -> dict[str, Any]:
    """Read the fields as `GoogleBaseHook` and the provider's file system do."""
    options = _without_empty({"base_url": fields["gcs.endpoint"]})
    if fields.is_on("is_anonymous"):
        return {**options, "skip_signature": "true"}
    if any(fields[name] for name in _NEEDS_GOOGLE):
        return {**options, **_google_hook(fields, travels)}
    key = _google_key(fields)
    return _without_empty(
        {**options, "service_account_path": fields["key_path"], "service_account_key": key}
    )


def _google_hook(fields: _Fields, travels: bool) -> dict[str, Any]:
    try:
        from airflow.providers.google.common.hooks.base_google import GoogleBaseHook
    except ImportError:
        raise fields.lacks(_NEEDS_GOOGLE, "apache-airflow-providers-google") from None

    with fields.provider("apache-airflow-providers-google"):
        credentials = GoogleBaseHook(gcp_conn_id=fields.conn_id).get_credentials()
        token_provider = google_credentials(credentials)
        return (
            {"bearer_token": token_provider()["token"]}
            if travels
            else {"credential_provider": token_provider}
        )


def _google_key(fields: _Fields) -> str | None:
    key = fields["keyfile_dict"]
    if key is None:
        return None
    try:
        service_account = (
            strict_json.loads(key, limit_bytes=_KEY_BYTES_MAX)
            if isinstance(key, str)
            else dict(key)
        )
        # In an environment variable, line ends are often escaped twice.
        service_account["private_key"] = service_account["private_key"].replace("\\n", "\n")
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigError(
            f"connection {fields.conn_id}: keyfile_dict is not the JSON of a service account's key"
        ) from None
    return json.dumps(service_account)


# --- Microsoft -----------------------------------------------------------------------------------


def _abfss(fields: _Fields, _travels: bool) -> dict[str, Any]:
    """Read the fields in the order of the hooks of Blob Storage and Data Lake, and of the provider's file system."""
    conn = fields.conn
    if text := fields["connection_string"]:
        return _connection_string(fields.conn_id, str(text))
    tenant = fields["tenant_id"] or fields["tenant"]
    # The field holds a token, or a whole address with a token.
    url, _, token = str(fields["sas_token"] or "").rpartition("?")
    address = url or fields["account_url"] or fields["account_host"] or conn.host
    # In other cases the login is a client's id.
    login = conn.login if fields.kind == "wasb" and not tenant else None
    account, endpoint = azure_account(address, login)
    options = {"account_name": fields["account_name"] or account, "endpoint": endpoint}
    if tenant:
        authority = fields.mapping("client_secret_auth_config").get("authority")
        options |= {"client_id": conn.login, "client_secret": conn.password, "tenant_id": tenant}
        options["authority_host"] = authority
    elif key := fields["shared_access_key"]:
        options["account_key"] = key
    elif token:
        options["sas_key"] = token
    elif key := conn.password or fields["account_key"]:
        options["account_key"] = key
    elif fields.is_on("anon"):
        options["skip_signature"] = "true"
    else:
        options["client_id"] = fields["managed_identity_client_id"]
        options["tenant_id"] = fields["workload_identity_tenant_id"]
    return _without_empty(options)


def azure_account(address: str | None, login: str | None) -> tuple[str | None, str | None]:
    """Return the account of an address, or the login; and the endpoint, unless it belongs to the public cloud.

    Args:
        address: a URL or a host of either service, or only the account.
        login: the account, for an address whose host does not contain it.
    """
    if not address or not re.search(r"[.:]", address):
        return login or address or None, None
    url = urlsplit(address if "//" in address else f"https://{address}")
    host = str(url.netloc).rpartition("@")[2].replace(".dfs.", ".blob.", 1)
    account, _, domain = host.partition(".")
    if domain == _PUBLIC_BLOBS:
        return account, None
    if path := url.path.strip("/"):
        # Emulators have the account in the path.
        return path.partition("/")[0], f"{url.scheme}://{host}/{path}"
    return (account if domain.startswith("blob.") else login or account), f"{url.scheme}://{host}"


def _connection_string(conn_id: str, text: str) -> dict[str, Any]:
    pairs = (pair.partition("=") for pair in text.split(";") if pair.strip())
    settings = {name.strip().lower(): value for name, _, value in pairs}
    if settings.get("usedevelopmentstorage") == "true":
        return dict(_EMULATOR)
    account, suffix = settings.get("accountname"), settings.get("endpointsuffix")
    address = settings.get("blobendpoint")
    if not address and account and suffix:
        protocol = settings.get("defaultendpointsprotocol", "https")
        address = f"{protocol}://{account}.blob.{suffix}"
    named, endpoint = azure_account(address, account)
    options = {
        "account_name": account or named,
        "account_key": settings.get("accountkey"),
        "sas_key": (settings.get("sharedaccesssignature") or "").lstrip("?"),
        "endpoint": endpoint,
    }
    if not options["account_name"]:
        raise ConfigError(f"connection {conn_id}: connection_string has no AccountName")
    return _without_empty(options)


def _without_empty(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value not in (None, "")}


_OPTIONS: Final[dict[str, Callable[[_Fields, bool], dict[str, Any]]]] = {
    "s3": _s3,
    "gs": _gs,
    "abfss": _abfss,
}
