"""Real certificates of an authority that lives for one test."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Issued:
    """A certificate and its key, in files (PEM)."""

    cert: Path
    key: Path
    ca: Path

    @property
    def environment(self) -> dict[str, str]:
        """The variables that plugin and command line take them from."""
        return {"TRIMTAB_TLS_CA": str(self.ca), "TRIMTAB_TLS_CERT": str(self.cert), "TRIMTAB_TLS_KEY": str(self.key)}

    def channel(self, address: str) -> grpc.Channel:
        """A channel on which this certificate is shown; a connection of its own."""
        credentials = grpc.ssl_channel_credentials(self.ca.read_bytes(), self.key.read_bytes(), self.cert.read_bytes())
        return grpc.secure_channel(address, credentials, [("grpc.use_local_subchannel_pool", 1)])


class Authority:
    """Signs certificates, for 127.0.0.1 and localhost where a server asks.

    Args:
        folder: Where the files go.
        name: Its own name.
    """

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(self._sign(name, self._key, [], authority=True))

    def issue(self, name: str, *alternative_names: str) -> Issued:
        """A certificate for this common name and these DNS names or URIs."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [
            x509.UniformResourceIdentifier(n) if "://" in n else x509.DNSName(n) for n in alternative_names
        ]
        return self._written(name, key, self._sign(name, key, names))

    def issue_server(self) -> Issued:
        """A certificate for a server on this machine."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        return self._written("server", key, self._sign("server", key, names))

    def _written(self, name: str, key: ec.EllipticCurvePrivateKey, cert: bytes) -> Issued:
        issued = Issued(self._folder / f"{name}.pem", self._folder / f"{name}.key", self.ca)
        issued.cert.write_bytes(cert)
        issued.key.touch(mode=0o600)
        issued.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return issued

    def _sign(
        self,
        name: str,
        key: ec.EllipticCurvePrivateKey,
        alternative_names: list[x509.GeneralName] | list[x509.DNSName | x509.IPAddress],
        authority: bool = False,
    ) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if alternative_names:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternative_names), critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
