"""Certificates: which versions of TLS, which files, and files that change."""

import asyncio
import ssl
from pathlib import Path

import pytest
from tests.fakes import FakeClock

from braidlog.agent.entrance.certificates import Certificates, server_context
from braidlog.cli.tools.certificates import write_certificate
from braidlog.runtime.errors import InvalidSetting
from braidlog.runtime.security_settings import SecuritySettings


def settings(folder: Path, **changes: object) -> SecuritySettings:
    made = write_certificate(folder, ["localhost", "127.0.0.1"])
    return SecuritySettings.model_validate(
        {"ssl_certificate_file": str(made["certificate"]), "ssl_key_file": str(made["key"]), **changes}
    )


def test_only_tls_1_2_and_1_3_with_forward_secrecy(tmp_path: Path) -> None:
    context = server_context(settings(tmp_path))
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert all(each["kea"] in ("kx-ecdhe", "kx-any") and each["aead"] for each in context.get_ciphers())


@pytest.mark.parametrize("broken", ["ssl_certificate_file", "ssl_key_file", "ssl_ca_file"])
def test_files_that_will_not_do_are_named(tmp_path: Path, broken: str) -> None:
    (tmp_path / "wrong").write_text("no certificate")
    with pytest.raises(InvalidSetting, match="cannot be used") as told:
        server_context(settings(tmp_path, **{broken: str(tmp_path / "wrong")}))
    assert broken in (told.value.help or "")


async def test_a_changed_certificate_is_used_and_open_connections_go_on(tmp_path: Path) -> None:
    certificates = Certificates(settings(tmp_path), FakeClock())

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=certificates.context)
    port = server.sockets[0].getsockname()[1]
    trust = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter, int]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
        return reader, writer, writer.get_extra_info("peercert")["serialNumber"]

    old_reader, old_writer, old_serial = await connect()
    assert not certificates.reload_if_changed()
    (tmp_path / "agent.key").write_text("half of a change")
    assert not certificates.reload_if_changed()
    write_certificate(tmp_path, ["localhost", "127.0.0.1"])
    assert certificates.reload_if_changed()
    _, new_writer, new_serial = await connect()
    assert new_serial != old_serial
    old_writer.write(b"still here\n")
    assert await old_reader.readline() == b"still here\n"
    for writer in (old_writer, new_writer):
        writer.close()
    server.close()
