"""Self-refreshing credentials from a host's boto3 session or Google credentials."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

#: Credentials are requested again after this time; botocore refreshes those that expire within ten minutes.
_TTL: Final = timedelta(minutes=5)


def aws_credentials(session: Any) -> Any:
    """Return a session's credentials for ``credential_provider``.

    Raises:
        ImportError: boto3 or obstore is not installed.
        ValueError: the session has no credentials.
    """
    from obstore.auth.boto3 import Boto3CredentialProvider

    return Boto3CredentialProvider(session, ttl=_TTL)


def google_credentials(credentials: Any) -> Any:
    """Return Google's credentials for ``credential_provider``; raise `ImportError` if google-auth is not installed."""
    from obstore.auth.google import GoogleCredentialProvider

    return GoogleCredentialProvider(credentials)
