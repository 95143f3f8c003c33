"""Credentials that refresh themselves, from what hosts have: a session of boto3, or Google's credentials."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

#: Credentials are asked for again after this time; botocore refreshes those that end within ten minutes.
_TTL: Final = timedelta(minutes=5)


def aws_credentials(session: Any) -> Any:
    """Return a session's credentials for ``credential_provider``.

    Raises:
        ImportError: boto3 or obstore is not installed.
        ValueError: the session has none.
    """
    from obstore.auth.boto3 import Boto3CredentialProvider

    return Boto3CredentialProvider(session, ttl=_TTL)


def google_credentials(credentials: Any) -> Any:
    """Return Google's credentials for ``credential_provider``; raise `ImportError` if google-auth is not installed."""
    from obstore.auth.google import GoogleCredentialProvider

    return GoogleCredentialProvider(credentials)
