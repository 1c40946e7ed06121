"""ACLs and credentials in the control plane: durable, published, and checked."""

from pathlib import Path

from kio.schema.errors import ErrorCode
from tests.control.driver import start_plane

from braidlog.control.interface import (
    AclsChanged,
    AlterCredentials,
    ControlPlane,
    CreateAcls,
    CredentialsChanged,
    DeleteAcls,
    FeedEvent,
    FeedPosition,
    FeedRequest,
    ScramCredential,
    SnapshotRequest,
)
from braidlog.security.acls import ALLOW, DENY, LITERAL, READ, TOPIC, WRITE, Acl, AclFilter

READS = Acl(TOPIC, "orders", LITERAL, "User:alice", "*", READ, ALLOW)
WRITES = READS._replace(operation=WRITE, permission=DENY)
WRONG = READS._replace(name="")


def credential(user: str, key: bytes = b"stored", mechanism: int = 1) -> ScramCredential:
    return ScramCredential(user, mechanism, b"salt", 4096, key, b"server")


async def news(control: ControlPlane, after: FeedPosition) -> list[FeedEvent]:
    return (await control.read_feed(FeedRequest(after, 0))).events


async def test_acls_are_published_and_in_the_snapshot(control: ControlPlane) -> None:
    before = (await control.snapshot(SnapshotRequest())).position
    outcomes = (await control.create_acls(CreateAcls([READS, WRONG, WRITES, READS]))).outcomes
    assert [outcome.error_code for outcome in outcomes] == [0, ErrorCode.invalid_request, 0, 0]
    assert "empty resource name" in outcomes[1].error_message
    assert (await control.snapshot(SnapshotRequest())).acls == [READS, WRITES]
    await control.create_acls(CreateAcls([READS]))  # there already: nothing changes
    deleted = await control.delete_acls(DeleteAcls([AclFilter(operation=WRITE), AclFilter(name="nothing")]))
    assert deleted.deleted == [[WRITES], []]
    assert (await control.snapshot(SnapshotRequest())).acls == [READS]
    assert await news(control, before) == [AclsChanged([READS, WRITES], []), AclsChanged([], [WRITES])]


async def test_credentials_are_published_and_a_user_with_a_wrong_change_keeps_all(control: ControlPlane) -> None:
    before = (await control.snapshot(SnapshotRequest())).position
    alice, bob = credential("alice"), credential("bob", mechanism=2)
    assert not any(
        each.error_code for each in (await control.alter_credentials(AlterCredentials([], [alice]))).outcomes
    )
    answer = await control.alter_credentials(AlterCredentials([("alice", 2)], [credential("alice", b"new"), bob]))
    assert [each.error_code for each in answer.outcomes] == [ErrorCode.resource_not_found, 0, 0]
    assert (await control.snapshot(SnapshotRequest())).credentials == [alice, bob]
    await control.alter_credentials(AlterCredentials([("bob", 2)], []))
    assert (await control.snapshot(SnapshotRequest())).credentials == [alice]
    changes = [CredentialsChanged([], [alice]), CredentialsChanged([], [bob]), CredentialsChanged([("bob", 2)], [])]
    assert await news(control, before) == changes


async def test_both_survive_the_control_plane(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/metadata.db"
    first = await start_plane(url)
    await first.service.create_acls(CreateAcls([READS, WRITES]))
    await first.service.delete_acls(DeleteAcls([AclFilter(permission=DENY)]))
    await first.service.alter_credentials(AlterCredentials([], [credential("alice"), credential("bob")]))
    await first.service.alter_credentials(AlterCredentials([("bob", 1)], []))
    await first.service.close()
    second = await start_plane(url, bucket=first.bucket)
    known = await second.service.snapshot(SnapshotRequest())
    assert (known.acls, known.credentials) == ([READS], [credential("alice")])
    await second.service.close()


def test_a_credential_does_not_show_its_keys() -> None:
    assert "stored" not in repr(credential("alice"))
    assert "stored" not in repr(AlterCredentials([], [credential("alice")]))
