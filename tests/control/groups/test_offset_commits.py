"""Committed offsets: what is accepted, what is durable, what expires."""

import asyncio

import pytest
from kio.schema.errors import ErrorCode
from tests.control.groups.virtual import OTHER_TOPIC, TOPIC, House, in_virtual_time

from braidlog.control.groups.settings import GroupSettings
from braidlog.control.interface import (
    CommitOffsets,
    DeleteOffsets,
    FetchOffsets,
    LeaveGroup,
    LeavingMember,
    ListGroups,
    OffsetToCommit,
)
from braidlog.control.metadata.store import MetadataUnavailable, Transaction

DAY_S = 24 * 60 * 60
DAY_MS = DAY_S * 1000


async def group_ids(house: House) -> list[str]:
    return [group.group_id for group in (await house.coordinator.list_groups(ListGroups())).groups]


def test_what_was_never_committed_is_minus_one_without_an_error() -> None:
    async def test(house: House) -> None:
        answer = await house.coordinator.commits.fetch_offsets(FetchOffsets("nobody", [(TOPIC, 0), (OTHER_TOPIC, 5)]))
        assert answer.error_code == 0
        assert [(each.topic_id, each.partition, each.offset, each.leader_epoch) for each in answer.offsets] == [
            (TOPIC, 0, -1, -1),
            (OTHER_TOPIC, 5, -1, -1),
        ]
        assert await house.committed(group_id="nobody") == []
        assert await group_ids(house) == []

    in_virtual_time(test)


def test_a_commit_is_fetched_back_whole_also_after_a_restart() -> None:
    async def test(house: House) -> None:
        assert await house.commit(42, metadata="ünd\0so") == 0
        for _ in range(2):
            (answer,) = (await house.coordinator.commits.fetch_offsets(FetchOffsets("g", [(TOPIC, 0)]))).offsets
            assert (answer.offset, answer.leader_epoch, answer.metadata) == (42, 3, "ünd\0so")
            await house.restart()
        assert await house.commit(41) == 0
        assert await house.committed((TOPIC, 0)) == [41]

    in_virtual_time(test)


def test_each_offset_has_its_own_verdict() -> None:
    async def test(house: House) -> None:
        offsets = [
            OffsetToCommit(TOPIC, 0, 1, -1, ""),
            OffsetToCommit(TOPIC, 8, 2, -1, ""),
            OffsetToCommit(b"?" * 16, 0, 3, -1, ""),
            OffsetToCommit(TOPIC, 1, 4, -1, "é" * 2049),
            OffsetToCommit(TOPIC, 2, 5, -1, "x" * 4096),
        ]
        answer = await house.coordinator.commits.commit_offsets(CommitOffsets("g", -1, "", None, offsets))
        assert answer.error_codes == [
            ErrorCode.none,
            ErrorCode.unknown_topic_or_partition,
            ErrorCode.unknown_topic_or_partition,
            ErrorCode.offset_metadata_too_large,
            ErrorCode.none,
        ]
        assert await house.committed() == [1, 5]

    in_virtual_time(test)


def test_who_may_commit() -> None:
    async def test(house: House) -> None:
        member = (await house.stable(1))[0]
        assert await house.commit(1) == ErrorCode.unknown_member_id
        assert await house.commit(1, member) == 0
        assert await house.commit(1, member, group_id="other") == ErrorCode.illegal_generation
        assert await house.commit(1, group_id="a\0b") == ErrorCode.invalid_group_id
        assert await house.commit(1, group_id="") == 0
        assert await house.committed(group_id="") == [1]
        assert await group_ids(house) == ["g", ""]

    in_virtual_time(test)


def test_many_commits_share_transactions_and_keep_their_order() -> None:
    async def test(house: House) -> None:
        commits = [house.commit(offset, group_id=f"g{offset % 50}") for offset in range(500)]
        assert set(await asyncio.gather(*commits)) == {0}
        assert house.metadata.transaction_count <= 2
        await house.restart()
        assert [await house.committed(group_id=f"g{number}") for number in (0, 49)] == [[450], [499]]

    in_virtual_time(test)


def test_a_commit_that_failed_raises_and_is_not_seen() -> None:
    async def test(house: House) -> None:
        await house.commit(1)
        house.metadata.failure = MetadataUnavailable("the disk is gone")
        with pytest.raises(MetadataUnavailable):
            await house.commit(2)
        house.metadata.failure = None
        assert await house.committed() == [1]
        assert await house.commit(3) == 0

    in_virtual_time(test)


def test_a_commit_whose_caller_goes_is_kept() -> None:
    async def test(house: House) -> None:
        commit = asyncio.create_task(house.commit(9))
        await asyncio.sleep(0)
        commit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await commit
        await house.restart()
        assert await house.committed() == [9]

    in_virtual_time(test)


def test_one_commit_that_cannot_be_stored_does_not_fail_the_others() -> None:
    async def test(house: House) -> None:
        def refuse(transaction: Transaction) -> None:
            transaction.execute(
                "CREATE TRIGGER refuse BEFORE INSERT ON group_offsets WHEN new.committed_offset = 666 "
                "BEGIN SELECT RAISE(ABORT, 'no'); END"
            )

        await house.metadata.store.transact(refuse)
        results = await asyncio.gather(
            *(house.commit(offset, partition=index) for index, offset in enumerate((1, 666, 3))),
            return_exceptions=True,
        )
        assert results[0] == results[2] == 0
        assert isinstance(results[1], Exception)
        assert await house.committed() == [1, 3]

    in_virtual_time(test)


def test_commits_are_refused_while_too_much_waits() -> None:
    async def test(house: House) -> None:
        codes = await asyncio.gather(*(house.commit(offset) for offset in range(12)))
        assert codes == [0] * 10 + [ErrorCode.coordinator_not_available] * 2
        assert await house.commit(99) == 0

    in_virtual_time(test, GroupSettings(initial_rebalance_delay_ms=0, unwritten_rows_max=10))


def test_deleting_offsets() -> None:
    async def test(house: House) -> None:
        member = (await house.stable(1))[0]
        await house.commit(1, member)
        await house.commit(2, member, topic_id=OTHER_TOPIC)
        partitions = [(TOPIC, 0), (OTHER_TOPIC, 0), (OTHER_TOPIC, 99)]
        answer = await house.coordinator.commits.delete_offsets(DeleteOffsets("g", partitions))
        assert (answer.error_code, answer.error_codes) == (
            0,
            [ErrorCode.group_subscribed_to_topic, ErrorCode.none, ErrorCode.unknown_topic_or_partition],
        )
        await house.restart()
        assert await house.committed() == [1]
        await house.coordinator.leave_group(LeaveGroup("g", [LeavingMember(member.member_id, None)]))
        answer = await house.coordinator.commits.delete_offsets(DeleteOffsets("g", [(TOPIC, 0)]))
        assert answer.error_codes == [0]
        assert await house.committed() == []

    in_virtual_time(test)


def test_deleting_offsets_of_groups_that_forbid_it() -> None:
    async def test(house: House) -> None:
        async def error(group_id: str) -> int:
            return (await house.coordinator.commits.delete_offsets(DeleteOffsets(group_id, [(TOPIC, 0)]))).error_code

        await house.stable(1, protocol_type="connect")
        assert await error("g") == ErrorCode.non_empty_group
        assert await error("nobody") == ErrorCode.group_id_not_found
        assert await error("") == ErrorCode.invalid_group_id

    in_virtual_time(test)


def test_the_offsets_of_a_deleted_topic_go() -> None:
    async def test(house: House) -> None:
        await house.commit(1)
        await house.commit(2, topic_id=OTHER_TOPIC)
        del house.topics[TOPIC]
        house.coordinator.commits.topics_removed(frozenset([TOPIC]))
        assert await house.committed() == [2]
        assert await house.commit(3) == ErrorCode.unknown_topic_or_partition
        await house.restart()
        assert await house.committed() == [2]

    in_virtual_time(test)


def test_expiry_makes_up_for_a_topic_removal_that_was_lost() -> None:
    async def test(house: House) -> None:
        await house.commit(1)
        del house.topics[TOPIC]
        assert await house.coordinator.commits.expire_once() == 1
        assert await group_ids(house) == []

    in_virtual_time(test)


def test_offsets_expire_after_the_group_became_empty() -> None:
    async def test(house: House) -> None:
        member = (await house.stable(1, session_ms=1_800_000))[0]
        await house.commit(1, member)
        await house.pass_time(1700)
        await house.coordinator.leave_group(LeaveGroup("g", [LeavingMember(member.member_id, None)]))
        await house.pass_time(7 * DAY_S - 100)
        await house.restart()
        assert await house.coordinator.commits.expire_once() == 0
        await house.pass_time(100)
        assert await house.coordinator.commits.expire_once() == 1
        assert await group_ids(house) == []
        await house.restart()
        assert await group_ids(house) == []

    in_virtual_time(test)


def test_offsets_outside_groups_expire_one_by_one() -> None:
    async def test(house: House) -> None:
        await house.commit(1)
        await house.pass_time(4 * DAY_S)
        await house.commit(2, partition=1)
        await house.pass_time(3 * DAY_S)
        assert await house.coordinator.commits.expire_once() == 1
        assert await house.committed() == [2]

    in_virtual_time(test)


def test_living_groups_lose_only_what_they_no_longer_read() -> None:
    async def test(house: House) -> None:
        member = (await house.stable(1, session_ms=1_800_000))[0]
        await house.commit(1, member)
        await house.commit(2, member, topic_id=OTHER_TOPIC)
        for _ in range(3):
            await house.pass_time(1000)
            assert await house.heartbeat(member) == 0
        assert await house.coordinator.commits.expire_once() == 1
        assert await house.committed() == [1]

    in_virtual_time(test, GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=2_000_000))


def test_expiry_spares_what_is_committed_meanwhile() -> None:
    async def test(house: House) -> None:
        await house.commit(1)
        await house.commit(1, partition=1)
        await house.pass_time(7 * DAY_S)
        code, expired = await asyncio.gather(house.commit(2), house.coordinator.commits.expire_once())
        assert (code, expired) == (0, 2)
        assert await house.committed() == [2]
        await house.restart()
        assert await house.committed() == [2]

    in_virtual_time(test)
