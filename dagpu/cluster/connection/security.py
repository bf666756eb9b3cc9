"""Who may speak to a cluster: TLS with certificates of one's own authority, or loopback alone."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from dagpu.common.errors import ClusterSecurityError
from dagpu.common.origin import Origin, describe, here
from dagpu.common.wrong_arguments import check_path


@final
@dataclass(frozen=True, slots=True)
class Tls:
    """The certificates of one end of a cluster's connections. Every end shows one of the same authority.

    A certificate is permission to run code on all machines of the cluster.

    Args:
        ca: the file with the certificate of the authority, in PEM.
        certificate: the file with this end's certificate, in PEM.
        key: the file with this end's private key, in PEM. Others must not be able to read it.
    """

    ca: Path | str
    certificate: Path | str
    key: Path | str

    def __post_init__(self) -> None:
        for name in ("ca", "certificate", "key"):
            check_path(getattr(self, name), "Tls", here())
            path = Path(getattr(self, name))
            if not path.is_file():
                raise ClusterSecurityError(
                    f"Tls() at {describe(here())}: {name} is {str(path)!r}, and there is no such file. Make the "
                    "certificates first: docs/guides/cluster.md shows how."
                )

    def options(self) -> Mapping[str, Any]:
        """Return the arguments of Dask's `Security`."""
        own = {"tls_client_cert": self.certificate, "tls_client_key": self.key}
        return {"tls_ca_file": str(self.ca), "require_encryption": True, **{k: str(v) for k, v in own.items()}}


_LOOPBACK: Final = ("localhost", "ip6-localhost")


def check_address(address: str, tls: Tls | None, origin: Origin) -> None:
    """Check that an address is one that may be spoken to.

    Raises:
        ClusterSecurityError: it is neither TLS with certificates nor loopback.
    """
    scheme, _, rest = address.rpartition("://")
    host = rest.rpartition(":")[0].strip("[]") or rest
    if scheme == "tls" and tls is None:
        raise ClusterSecurityError(
            f"Cluster.connect({address!r}) at {describe(origin)}: TLS needs certificates. Pass tls=Tls(ca, "
            "certificate, key)."
        )
    if scheme == "tls" or _is_loopback(host):
        return
    raise ClusterSecurityError(
        f"Cluster.connect({address!r}) at {describe(origin)}: in the clear, whoever reads the network can run code on "
        "the cluster. Start the scheduler with TLS, and connect to tls://... with tls=Tls(ca, certificate, key)."
    )


def _is_loopback(host: str) -> bool:
    try:
        return host in _LOOPBACK or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
