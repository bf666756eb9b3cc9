"""Certificates for tests of TLS: an authority, and one certificate that it has signed, in files."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dagpu import Tls


def certificates(folder: Path) -> Tls:
    """Make an authority of its own and a certificate for this machine in a folder."""
    folder.mkdir()
    now = datetime.now(UTC)
    authority_key, own_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority of {folder.name}")])
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    signed = []
    for subject, key, is_authority in ((authority, authority_key, True), (own, own_key, False)):
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        )
        signed.append(builder.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    (folder / "ca.pem").write_bytes(signed[0])
    (folder / "cert.pem").write_bytes(signed[1])
    (folder / "key.pem").write_bytes(
        own_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return Tls(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
