"""Credentials of an object store: as text, as environment variables of the run, or from a resource."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dagster import ConfigurableResource, EnvVar

from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.errors import ConfigError

#: What assets, ops and components take as ``storage_options``: a resource is dagster-aws's ``S3Resource``.
StorageOptions = Mapping[str, Any] | ConfigurableResource[Any]

#: The fields of dagster-aws's resources, as storage options.
_OF_S3: Final = {
    "region_name": "aws_region",
    "endpoint_url": "aws_endpoint",
    "aws_access_key_id": "aws_access_key_id",
    "aws_secret_access_key": "aws_secret_access_key",
    "aws_session_token": "aws_session_token",
}


def check_options(options: object) -> None:
    """Raise `ConfigError` for invalid storage options; its message shows no value."""
    if options is None:
        return
    if isinstance(options, ConfigurableResource):
        if not _OF_S3.keys() <= type(options).model_fields.keys():
            raise ConfigError(
                f"storage_options is a {type(options).__name__}: give a mapping, or dagster-aws's S3Resource"
            )
    elif not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise ConfigError(
            f"storage_options is a {type(options).__name__}: give a mapping of names and values, such as "
            "{'aws_secret_access_key': EnvVar('LAKE_SECRET')}"
        )


def resolved_options(options: StorageOptions | None) -> dict[str, Any] | None:
    """Return storage options with the values of variables, for the running step.

    Raises:
        ConfigError: a variable is not set, or a profile cannot be read.
    """
    if options is None:
        return None
    if isinstance(options, Mapping):
        return {name: _value(name, value) for name, value in options.items()}
    return _of_resource(options)


def _of_resource(resource: ConfigurableResource[Any]) -> dict[str, Any]:
    fields = {name: _value(name, getattr(resource, name)) for name in _OF_S3}
    options = {_OF_S3[name]: value for name, value in fields.items() if value is not None}
    if getattr(resource, "use_unsigned_session", False):
        options["aws_skip_signature"] = "true"
    if getattr(resource, "verify", None) is False:
        options["allow_invalid_certificates"] = "true"
    if (profile := getattr(resource, "profile_name", None)) is not None:
        options |= _profile(_value("profile_name", profile))
    return options


def _profile(name: str) -> dict[str, Any]:
    # dagster-aws brings both.
    import boto3
    from botocore.exceptions import ProfileNotFound

    from kafka_ordered_ops.output.objects.credentials import aws_credentials

    try:
        return {"credential_provider": aws_credentials(boto3.Session(profile_name=name))}
    except (ProfileNotFound, ValueError):
        raise ConfigError(
            f"storage_options has profile_name {shown(name)}, and this machine has no credentials for it"
        ) from None


def _value(name: str, value: Any) -> Any:
    if not isinstance(value, EnvVar):
        return value
    if (resolved := value.get_value()) is None:
        raise ConfigError(
            f"storage_options takes {name} from the environment variable {value.env_var_name}, which is not set where the "
            "step runs: set it there"
        )
    return resolved
