"""Airflow's connections of object stores as storage options.

The fields are those of the providers' hooks. Keys, tokens and settings are taken from them directly, with no provider
installed. What needs a hook (a role, a profile, impersonation) goes through the provider's, with credentials that
refresh themselves.
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

#: Fields that only a provider's hook can make credentials of.
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
        scheme: of the output: ``s3``, ``gs`` or ``abfss``.
        travels: whether the options are sent to another process: a role's credentials are then those of now, and end
            with their session.

    Raises:
        AirflowNotFoundException: there is no such connection.
        ConfigError: it is of another type, has fields that need a provider which is not installed, or invalid ones.
        SinkError: the provider's hook gave no credentials.
    """
    conn = BaseHook.get_connection(conn_id)
    kind = str(conn.conn_type or _TYPES[scheme][0])
    if kind not in _TYPES[scheme]:
        raise ConfigError(
            f"connection {conn_id} is of type {conn.conn_type!r}, and the output is in {scheme}://: name a connection "
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
        raise ConfigError(f"connection {conn_id}: the address of the account is no URL") from None
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


#: A service account's key has some 2,400 characters.
_KEY_BYTES_MAX: Final = 64 * 1024

#: Texts that cannot be secrets, whatever their key; masked, they would be gone from every line of the log.
_HARMLESS: Final = frozenset({"true", "false"})


_PUBLIC_BLOBS: Final = "blob.core.windows.net"

#: Azure's emulator on this machine: its one account, whose key every library knows.
_EMULATOR: Final = {"account_name": "devstoreaccount1", "use_emulator": "true"}


class _Fields:
    """The fields of a connection, also by the names that older forms gave them."""

    def __init__(self, conn_id: str, kind: str, extra: Mapping[str, Any], conn: Any) -> None:
        self.conn_id, self.kind, self._extra, self.conn = conn_id, kind, extra, conn

    def __getitem__(self, name: str) -> Any:
        """Return a field of the extra; None if it is not there or empty, as forms save it."""
        found = self._extra.get(name)
        if found in (None, ""):
            found = self._extra.get(f"extra__{self.kind}__{name}")
        return None if found == "" else found

    def mapping(self, name: str, inner: str | None = None) -> Mapping[str, Any]:
        """Return a field that is a JSON object, or an object in it; raise `ConfigError` for another one."""
        found = (self[name] if inner is None else self.mapping(name).get(inner)) or {}
        if not isinstance(found, Mapping):
            raise ConfigError(
                f"connection {self.conn_id}: {'.'.join(filter(None, (name, inner)))} is a {type(found).__name__}, not an "
                "object"
            )
        return found

    @contextmanager
    def provider(self, package: str) -> Iterator[None]:
        """Name the connection in what a provider's hook raises; its own text may have a secret in it.

        A hook fails by its library's errors, of which some say that the service is away: the host may try again.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the libraries' errors have no common class
            raise SinkError(
                f"connection {self.conn_id}: the hook of {package} gave no credentials ({type(error).__name__}). Test the "
                "connection on this worker"
            ) from None

    def is_on(self, name: str) -> bool:
        """Return whether a field is true, as JSON or as a form has it."""
        return str(self[name]).lower() in ("true", "1")

    def lacks(self, names: tuple[str, ...], provider: str) -> ConfigError:
        """Return the error for fields whose provider is not installed."""
        given = ", ".join(name for name in names if self[name])
        return ConfigError(
            f"connection {self.conn_id} has {given}, which needs its provider's hook: install {provider}"
        )


# --- Amazon --------------------------------------------------------------------------------------


def _s3(fields: _Fields, travels: bool) -> dict[str, Any]:
    """As `AwsConnectionWrapper` reads the fields."""
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
        # Half of a pair is none, as for the hook.
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
    return _given(options)


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
            f"connection {fields.conn_id}: verify names no file of certificates on this worker "
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
        found = session.get_credentials().get_frozen_credentials()
        return {
            "aws_access_key_id": found.access_key,
            "aws_secret_access_key": found.secret_key,
            "aws_session_token": found.token,
            **region,
        }


# --- Google --------------------------------------------------------------------------------------


def _gs(fields: _Fields, travels: bool) -> dict[str, Any]:
    """As `GoogleBaseHook` and the provider's file system read the fields."""
    options = _given({"base_url": fields["gcs.endpoint"]})
    if fields.is_on("is_anonymous"):
        return {**options, "skip_signature": "true"}
    if any(fields[name] for name in _NEEDS_GOOGLE):
        return {**options, **_google_hook(fields, travels)}
    key = _google_key(fields)
    return _given(
        {**options, "service_account_path": fields["key_path"], "service_account_key": key}
    )


def _google_hook(fields: _Fields, travels: bool) -> dict[str, Any]:
    try:
        from airflow.providers.google.common.hooks.base_google import GoogleBaseHook
    except ImportError:
        raise fields.lacks(_NEEDS_GOOGLE, "apache-airflow-providers-google") from None

    with fields.provider("apache-airflow-providers-google"):
        credentials = GoogleBaseHook(gcp_conn_id=fields.conn_id).get_credentials()
        found = google_credentials(credentials)
        return {"bearer_token": found()["token"]} if travels else {"credential_provider": found}


def _google_key(fields: _Fields) -> str | None:
    key = fields["keyfile_dict"]
    if key is None:
        return None
    try:
        found = (
            strict_json.loads(key, limit_bytes=_KEY_BYTES_MAX)
            if isinstance(key, str)
            else dict(key)
        )
        # In a variable of the environment, ends of lines are often escaped twice.
        found["private_key"] = found["private_key"].replace("\\n", "\n")
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigError(
            f"connection {fields.conn_id}: keyfile_dict is not the JSON of a service account's key"
        ) from None
    return json.dumps(found)


# --- Microsoft -----------------------------------------------------------------------------------


def _abfss(fields: _Fields, _travels: bool) -> dict[str, Any]:
    """As the hooks of Blob Storage and Data Lake, and the provider's file system, read the fields, in their order."""
    conn = fields.conn
    if text := fields["connection_string"]:
        return _connection_string(fields.conn_id, str(text))
    tenant = fields["tenant_id"] or fields["tenant"]
    # A token, or the whole address with one.
    url, _, token = str(fields["sas_token"] or "").rpartition("?")
    address = url or fields["account_url"] or fields["account_host"] or conn.host
    # Elsewhere the login is a client's id.
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
    return _given(options)


def azure_account(address: str | None, login: str | None) -> tuple[str | None, str | None]:
    """Return the account of an address, or the login, and the endpoint unless it is the public cloud's.

    Args:
        address: a URL or a host, by the name of either service; or the account alone.
        login: the account, where the address is a host that does not name it.
    """
    if not address or not re.search(r"[.:]", address):
        return login or address or None, None
    url = urlsplit(address if "//" in address else f"https://{address}")
    host = str(url.netloc).rpartition("@")[2].replace(".dfs.", ".blob.", 1)
    account, _, domain = host.partition(".")
    if domain == _PUBLIC_BLOBS:
        return account, None
    if path := url.path.strip("/"):
        # As emulators have it.
        return path.partition("/")[0], f"{url.scheme}://{host}/{path}"
    return (account if domain.startswith("blob.") else login or account), f"{url.scheme}://{host}"


def _connection_string(conn_id: str, text: str) -> dict[str, Any]:
    pairs = (one.partition("=") for one in text.split(";") if one.strip())
    found = {name.strip().lower(): value for name, _, value in pairs}
    if found.get("usedevelopmentstorage") == "true":
        return dict(_EMULATOR)
    account, suffix = found.get("accountname"), found.get("endpointsuffix")
    address = found.get("blobendpoint")
    if not address and account and suffix:
        protocol = found.get("defaultendpointsprotocol", "https")
        address = f"{protocol}://{account}.blob.{suffix}"
    named, endpoint = azure_account(address, account)
    options = {
        "account_name": account or named,
        "account_key": found.get("accountkey"),
        "sas_key": (found.get("sharedaccesssignature") or "").lstrip("?"),
        "endpoint": endpoint,
    }
    if not options["account_name"]:
        raise ConfigError(f"connection {conn_id}: connection_string names no account (AccountName)")
    return _given(options)


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value not in (None, "")}


_OPTIONS: Final[dict[str, Callable[[_Fields, bool], dict[str, Any]]]] = {
    "s3": _s3,
    "gs": _gs,
    "abfss": _abfss,
}
