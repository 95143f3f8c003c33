"""Airflow's connections of object stores as storage options.

The fields are those of the providers' hooks. Keys, tokens and settings are taken from them directly, with no provider
installed. What needs a hook (a role, a profile, impersonation) goes through the provider's, with credentials that
refresh themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from kafka_ordered_ops.airflow.compat import BaseHook, mask
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.output.objects.credentials import aws_credentials, google_credentials

#: By the scheme of an output, the types of connections for it.
_TYPES: Final = {
    "s3": ("aws", "s3"),
    "gs": ("google_cloud_platform",),
    "abfss": ("wasb", "adls", "azure_data_lake"),
}

#: Fields that only a provider's hook can make credentials of.
_NEEDS_AWS: Final = ("role_arn", "assume_role_method", "profile_name")
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
        ConfigError: it is of another type, or has fields that need a provider which is not installed.
    """
    conn = BaseHook.get_connection(conn_id)
    if conn.conn_type not in _TYPES[scheme]:
        raise ConfigError(
            f"connection {conn_id} is of type {conn.conn_type!r}, and the output is in {scheme}://: name a connection "
            f"of type {' or '.join(_TYPES[scheme])}"
        )
    extra = conn.extra_dejson
    if not isinstance(extra, Mapping):
        raise ConfigError(
            f"connection {conn_id}: extra is a JSON {type(extra).__name__}, not an object of settings"
        )
    fields = _Fields(conn_id, str(conn.conn_type), extra, conn)
    options = _OPTIONS[scheme](fields, travels)
    for secret in (conn.password, *_texts(options)):
        if secret and secret not in _HARMLESS:
            mask(secret)
    return options


def _texts(options: Mapping[str, Any]) -> list[str]:
    return [value for name, value in options.items() if isinstance(value, str) and _is_secret(name)]


def _is_secret(name: str) -> bool:
    return any(word in name for word in ("secret", "token", "sas", "service_account_key")) or (
        name == "account_key"
    )


#: Texts that cannot be secrets, whatever their key; masked, they would be gone from every line of the log.
_HARMLESS: Final = frozenset({"true", "false"})


class _Fields:
    """The fields of a connection, also by the names that older forms gave them."""

    def __init__(self, conn_id: str, kind: str, extra: Mapping[str, Any], conn: Any) -> None:
        self.conn_id, self._kind, self._extra, self.conn = conn_id, kind, extra, conn

    def __getitem__(self, name: str) -> Any:
        """Return a field of the extra; None if it is not there or empty, as forms save it."""
        found = self._extra.get(name)
        if found in (None, ""):
            found = self._extra.get(f"extra__{self._kind}__{name}")
        return None if found == "" else found

    def mapping(self, name: str) -> Mapping[str, Any]:
        """Return a field that is a JSON object; raise `ConfigError` for another one."""
        found = self[name] or {}
        if not isinstance(found, Mapping):
            raise ConfigError(
                f"connection {self.conn_id}: {name} is a {type(found).__name__}, not an object"
            )
        return found

    def lacks(self, names: tuple[str, ...], provider: str) -> ConfigError:
        """Return the error for fields whose provider is not installed."""
        given = ", ".join(name for name in names if self[name])
        return ConfigError(
            f"connection {self.conn_id} has {given}, which needs its provider's hook: install {provider}"
        )


# --- Amazon --------------------------------------------------------------------------------------


def _s3(fields: _Fields, travels: bool) -> dict[str, Any]:
    """As `AwsConnectionWrapper` reads the fields."""
    conn, service = fields.conn, fields.mapping("service_config").get("s3") or {}
    config = fields.mapping("config_kwargs")
    options = {
        "aws_region": fields["region_name"],
        "aws_endpoint": service.get("endpoint_url") or fields["endpoint_url"],
        **_certificates(fields),
    }
    if (config.get("s3") or {}).get("addressing_style") == "virtual":
        options["aws_virtual_hosted_style_request"] = "true"
    if config.get("signature_version") == "unsigned":
        options["aws_skip_signature"] = "true"
    elif any(fields[name] for name in _NEEDS_AWS):
        options |= _aws_session(fields, options, travels)
    else:
        # A login without a password is none, as for the hook.
        has_login = conn.login and conn.password
        options |= {
            "aws_access_key_id": conn.login if has_login else fields["aws_access_key_id"],
            "aws_secret_access_key": (
                conn.password if has_login else fields["aws_secret_access_key"]
            ),
            "aws_session_token": fields["aws_session_token"],
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


def _gs(fields: _Fields, _travels: bool) -> dict[str, Any]:
    """As `GoogleBaseHook` reads the fields."""
    if any(fields[name] for name in _NEEDS_GOOGLE):
        try:
            from airflow.providers.google.common.hooks.base_google import GoogleBaseHook
        except ImportError:
            raise fields.lacks(_NEEDS_GOOGLE, "apache-airflow-providers-google") from None

        credentials = GoogleBaseHook(gcp_conn_id=fields.conn_id).get_credentials()
        return {"credential_provider": google_credentials(credentials)}
    if fields["is_anonymous"]:
        return {"skip_signature": "true"}
    key = fields["keyfile_dict"]
    return _given(
        {
            "service_account_path": fields["key_path"],
            "service_account_key": json.dumps(key) if isinstance(key, Mapping) else key,
        }
    )


# --- Microsoft -----------------------------------------------------------------------------------


def _abfss(fields: _Fields, _travels: bool) -> dict[str, Any]:
    """As the hooks of Blob Storage and Data Lake read the fields, in their order."""
    conn = fields.conn
    if text := fields["connection_string"]:
        return _connection_string(fields.conn_id, str(text))
    tenant = fields["tenant_id"] or fields["tenant"]
    host = _host(conn.host)
    account = fields["account_name"] or (host or "").partition(".")[0] or None
    if tenant:
        keys = {"client_id": conn.login, "client_secret": conn.password, "tenant_id": tenant}
        return _given({"account_name": account, **keys})
    options = {"account_name": account or conn.login}
    token = fields["sas_token"]
    if key := fields["shared_access_key"]:
        options["account_key"] = key
    elif token:
        options["sas_key"] = str(token).rpartition("?")[2]
    else:
        options["account_key"] = conn.password or fields["account_key"]
    return _given(options)


def _host(text: str | None) -> str | None:
    return urlsplit(text if "//" in text else f"//{text}").hostname if text else None


def _connection_string(conn_id: str, text: str) -> dict[str, Any]:
    pairs = (one.partition("=") for one in text.split(";") if one.strip())
    found = {name.strip().lower(): value for name, _, value in pairs}
    options = {
        "account_name": found.get("accountname"),
        "account_key": found.get("accountkey"),
        "sas_key": (found.get("sharedaccesssignature") or "").lstrip("?"),
        "endpoint": (found.get("blobendpoint") or "").rstrip("/"),
    }
    if not options["account_name"] and options["endpoint"]:
        options["account_name"] = (_host(options["endpoint"]) or "").partition(".")[0]
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
