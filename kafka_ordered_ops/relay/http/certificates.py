"""The server's certificate, which is read at the start, and again when its files change."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Final

from kafka_ordered_ops.core.errors import ConfigError

_LOG: Final = logging.getLogger(__name__)

#: Without a password, OpenSSL would prompt for it at the terminal and block the server.
_NO_PASSWORD: Final = ""


class Certificates:
    """The TLS context of one server.

    Args:
        certificate: PEM, with the whole chain.
        key: PEM; None if the key is in the certificate's file.
        client_authority: PEM; callers need a certificate of this authority. The file is read once.

    Raises:
        ConfigError: a file cannot be used.
    """

    def __init__(self, certificate: Path, key: Path | None, client_authority: Path | None) -> None:
        self._certificate, self._key, self._authority = certificate, key, client_authority
        self._seen = self._look()
        self.context = self._loaded()

    def look(self) -> None:
        """Use a renewed certificate for new connections."""
        seen = self._look()
        if seen == self._seen:
            return
        try:
            # Checked first: the context would keep one half of a pair that does not match.
            self._loaded()
            self.context.load_cert_chain(self._certificate, self._key, _NO_PASSWORD)
        except (ConfigError, OSError) as error:
            _LOG.error("the previous certificate stays in use: %s", error)
        else:
            _LOG.info("the certificate %s was read again", self._certificate)
        self._seen = seen

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._certificate, self._key, _NO_PASSWORD)
            if self._authority is not None:
                context.load_verify_locations(self._authority)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as error:
            # The error does not name the file; its text may contain a path or a line, but never the key.
            raise ConfigError(
                f"the files for TLS cannot be used ({self._certificate}, {self._key}, {self._authority}): {error}"
            ) from error
        return context

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_state(file) for file in (self._certificate, self._key) if file is not None]


def _state(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
