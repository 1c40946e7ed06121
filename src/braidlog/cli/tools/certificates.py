"""`braid cert`: a certificate authority and certificates to try TLS with."""

import ipaddress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from braidlog.cli.options import Format
from braidlog.cli.output import OutputFormat, emit_fields

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

app = typer.Typer(
    help="Make certificates to try TLS with; not for production.", no_args_is_help=True, rich_markup_mode=None
)

DAYS = 365
CA_NAME = "Braidlog development CA"
BACKDATED = timedelta(minutes=5)
"""Certificates are valid from a little before now: clocks differ."""


@app.command()
def create(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Host names and addresses; else localhost, 127.0.0.1.")
    ] = None,
    folder: Annotated[Path, typer.Option("--folder", metavar="FOLDER", help="Where to write the files.")] = Path(
        "certs"
    ),
    user: Annotated[
        str | None, typer.Option("--user", metavar="NAME", help="Make a client's certificate for this user instead.")
    ] = None,
    days: Annotated[int, typer.Option("--days", min=1, max=3650, help="How long it is valid.")] = DAYS,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Make a certificate, and an authority if there is none yet.

    \b
    Example: braid cert create --folder certs
    """
    made = write_certificate(folder, names or ["localhost", "127.0.0.1"], user=user, days=days)
    emit_fields(format, {name: str(path) for name, path in made.items()})


def write_certificate(folder: Path, names: list[str], *, user: str | None = None, days: int = DAYS) -> dict[str, Path]:
    """Write a key and a certificate. Returns the paths of both, and of the authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    folder.mkdir(parents=True, exist_ok=True)
    authority, authority_key = _authority(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    common_name = user or names[0]
    usage = ExtendedKeyUsageOID.CLIENT_AUTH if user is not None else ExtendedKeyUsageOID.SERVER_AUTH
    builder = (
        _builder(common_name, authority.subject, days)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    )
    if user is None:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False
        )
    stem = "agent" if user is None else f"user-{user}"
    paths = {
        "certificate": folder / f"{stem}.pem",
        "key": folder / f"{stem}.key",
        "ca": folder / "ca.pem",
    }
    from cryptography.hazmat.primitives import hashes

    _write(paths["key"], paths["certificate"], key, builder.sign(authority_key, hashes.SHA256()))
    return paths


def _general_name(name: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(common_name: str, issuer: "x509.Name", days: int) -> "x509.CertificateBuilder":
    from datetime import UTC, datetime

    from cryptography import x509
    from cryptography.x509.oid import NameOID

    from braidlog.runtime.clock import SystemClock

    now = datetime.fromtimestamp(SystemClock().wall_ms() / 1000, UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + timedelta(days=days))
    )


def _authority(folder: Path) -> "tuple[x509.Certificate, EllipticCurvePrivateKey]":
    """The authority of the folder, which is made on first use."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    from braidlog.clients.errors import CommandError

    key_path, path = folder / "ca.key", folder / "ca.pem"
    if path.exists() and key_path.exists():
        try:
            known = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
        except ValueError as error:
            raise CommandError(f"{key_path} is no key: {error}", help="Choose another --folder.") from None
        if not isinstance(known, ec.EllipticCurvePrivateKey):
            raise CommandError(f"{key_path} is not from `braid cert`", help="Choose another --folder.")
        return certificate, known
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, CA_NAME)])
    certificate = (
        _builder(CA_NAME, name, 10 * DAYS)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(key_path, path, key, certificate)
    return certificate, key


def _write(key_path: Path, path: Path, key: "EllipticCurvePrivateKey", certificate: "x509.Certificate") -> None:
    from cryptography.hazmat.primitives import serialization

    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for target, data, mode in (
        (key_path, encoded, 0o600),
        (path, certificate.public_bytes(serialization.Encoding.PEM), 0o644),
    ):
        # In two steps, so that nobody reads half a file, and never readable for others meanwhile.
        draft = target.with_name(f"{target.name}.new")
        draft.touch(mode=mode)
        draft.chmod(mode)
        draft.write_bytes(data)
        draft.replace(target)
