"""An authority of a test's own, and a server's certificate from it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAYS = timedelta(days=2)


def write_certificates(folder: Path, host: str) -> tuple[Path, Path]:
    """Write the authority's certificate, and the server's key and certificate; return both files, in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    authority = _certificate("authority", key, key, None)
    own_key = ec.generate_private_key(ec.SECP256R1())
    own = _certificate("server", own_key, key, host)
    files = folder / "authority.pem", folder / "server.pem"
    files[0].write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        own_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + own.public_bytes(serialization.Encoding.PEM)
    )
    return files


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    host: str | None,
) -> x509.Certificate:
    now = datetime.now(UTC)
    subject, issuer = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one)]) for one in (name, "authority")
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAYS)
        .not_valid_after(now + _DAYS)
        .add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
    )
    if host is not None:
        names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(host))])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(signer, hashes.SHA256())
