"""The group coordinator over a real metadata store, in virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop
from kio.schema.errors import ErrorCode
from tests.control.groups.classic.driver import RANGE, STICKY, join_request, subscription
from tests.control.groups.virtual import CommittedTopics, House, in_virtual_time

from braidlog.control.groups.coordinator import GroupCoordinator
from braidlog.control.groups.settings import GroupSettings
from braidlog.control.interface import (
    DeleteGroups,
    DescribeGroups,
    GroupListing,
    JoinAnswer,
    JoinProtocol,
    LeaveGroup,
    LeavingMember,
    ListGroups,
)
from braidlog.control.metadata.store import MetadataUnavailable, open_metadata
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.errors import ControlUnavailable

Test = Callable[[House], Coroutine[Any, Any, None]]


async def listing(house: House, *states: str, types: tuple[str, ...] = ()) -> list[GroupListing]:
    return (await house.coordinator.list_groups(ListGroups(list(states), list(types)))).groups


def test_a_group_from_the_first_join_to_the_last_leave() -> None:
    async def test(house: House) -> None:
        refused = await house.join(known=True)
        assert refused.error_code == ErrorCode.member_id_required
        assert refused.member_id.startswith("client-")
        joined = await house.join(refused.member_id, known=True)
        assert (joined.error_code, joined.leader) == (0, joined.member_id)
        answer = await house.sync(joined, {joined.member_id: b"all"})
        assert (answer.error_code, answer.assignment) == (0, b"all")
        assert await house.heartbeat(joined) == 0
        assert await listing(house) == [GroupListing("g", "consumer", "Stable")]
        left = await house.coordinator.leave_group(LeaveGroup("g", [LeavingMember(joined.member_id, None)]))
        assert left.member_error_codes == [0]
        assert await house.heartbeat(joined) == ErrorCode.unknown_member_id
        assert await listing(house) == [GroupListing("g", "consumer", "Empty")]

    in_virtual_time(test)


def test_the_initial_delay_gathers_members() -> None:
    async def test(house: House) -> None:
        async def join_after(seconds: float) -> JoinAnswer:
            await house.pass_time(seconds)
            return await house.join()

        start_s = house.loop.time()
        answers = await asyncio.gather(*(join_after(seconds) for seconds in (0, 1, 2, 4)))
        assert {answer.generation_id for answer in answers} == {1}
        assert house.loop.time() - start_s == pytest.approx(9)

    in_virtual_time(test, GroupSettings(initial_rebalance_delay_ms=3000))


def test_sessions_end_without_heartbeats_and_last_with_them() -> None:
    async def test(house: House) -> None:
        (joined,) = await house.stable(1)
        for _ in range(10):
            await house.pass_time(9)
            assert await house.heartbeat(joined) == 0
        await house.pass_time(10.1)
        assert await house.heartbeat(joined) == ErrorCode.unknown_member_id
        assert (await listing(house))[0].state == "Empty"

    in_virtual_time(test)


def test_a_restart_goes_on_with_the_same_generation() -> None:
    async def test(house: House) -> None:
        leader, follower = await house.stable(2)
        assert await house.commit(42, leader, metadata="note ☂") == 0
        await house.restart()
        assert (await listing(house))[0].state == "Stable"
        assert await house.heartbeat(leader) == 0
        assert await house.heartbeat(follower) == 0
        assert (await house.sync(follower)).assignment == b"1"
        assert await house.committed() == [42]
        assert await house.commit(43, leader) == 0
        # One of them never comes back: its session starts with the coordinator.
        for _ in range(3):
            await house.pass_time(4)
            code = await house.heartbeat(leader)
        assert code == ErrorCode.rebalance_in_progress
        again = await house.join(leader.member_id)
        assert again.generation_id == leader.generation_id + 1

    in_virtual_time(test)


def test_an_empty_group_keeps_its_generation_over_a_restart() -> None:
    async def test(house: House) -> None:
        (joined,) = await house.stable(1)
        await house.commit(1, joined)
        await house.coordinator.leave_group(LeaveGroup("g", [LeavingMember(joined.member_id, None)]))
        await house.restart()
        assert (await house.join()).generation_id == 3

    in_virtual_time(test)


@pytest.mark.parametrize("away_s", [5, 15])
def test_a_static_member_restarts_together_with_the_coordinator(away_s: float) -> None:
    async def test(house: House) -> None:
        (joined,) = await house.stable(1, instance="a", client="c")
        assert joined.member_id.startswith("a-")
        await house.restart()
        await house.pass_time(away_s)
        back = await house.join(instance="a")
        if away_s == 5:
            assert (back.generation_id, back.skip_assignment) == (joined.generation_id, True)
            assert (await house.sync(back, instance="a")).assignment == b"0"
            assert await house.heartbeat(joined, instance="a") == ErrorCode.fenced_instance_id
            await house.restart()
            assert await house.heartbeat(back, instance="a") == 0
        else:
            assert back.generation_id > joined.generation_id

    in_virtual_time(test)


def test_a_cooperative_rebalance_takes_two_steps() -> None:
    """The first generation after a join takes partitions away, the second hands them out."""

    async def test(house: House) -> None:
        def owning(*owned: str) -> tuple[JoinProtocol, ...]:
            return (JoinProtocol(STICKY.name, subscription("t") + "".join(owned).encode()),)

        (first,) = await house.stable(1, protocols=owning())
        joining = asyncio.create_task(house.join(protocols=owning()))
        await house.pass_time(3)
        assert await house.heartbeat(first) == ErrorCode.rebalance_in_progress
        assert await house.commit(5, first) == 0
        first = await house.join(first.member_id, protocols=owning("01"))
        second = await joining
        assert first.generation_id == second.generation_id == 2
        owned, nothing = await asyncio.gather(
            house.sync(first, {first.member_id: b"0", second.member_id: b""}), house.sync(second)
        )
        assert (owned.assignment, nothing.assignment) == (b"0", b"")
        # Having revoked, the first one joins again at once; the other hears of it by heartbeat.
        joining = asyncio.create_task(house.join(first.member_id, protocols=owning("0")))
        await house.pass_time(1)
        assert await house.heartbeat(second) == ErrorCode.rebalance_in_progress
        second = await house.join(second.member_id, protocols=owning())
        first = await joining
        assert first.generation_id == second.generation_id == 3
        kept, given = await asyncio.gather(
            house.sync(first, {first.member_id: b"0", second.member_id: b"1"}), house.sync(second)
        )
        assert (kept.assignment, given.assignment) == (b"0", b"1")

    in_virtual_time(test)


def test_a_cancelled_join_does_not_hold_the_others_up_for_ever() -> None:
    async def test(house: House) -> None:
        leader, follower = await house.stable(2)
        gone = asyncio.create_task(house.join())
        waiting = asyncio.create_task(house.join(leader.member_id))
        await house.pass_time(1)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        await house.join(follower.member_id)
        assert len((await waiting).members) == 2

    in_virtual_time(test)


def test_a_cancelled_sync_is_forgotten() -> None:
    async def test(house: House) -> None:
        leader, follower = await asyncio.gather(house.join(), house.join())
        gone = asyncio.create_task(house.sync(follower))
        await house.pass_time(1)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        await house.sync(leader, {follower.member_id: b"x"})
        assert (await house.sync(follower)).assignment == b"x"

    in_virtual_time(test)


def test_before_loading_requests_are_told_to_come_again() -> None:
    async def test(house: House) -> None:
        nobody = JoinAnswer(0, 1, None, None, "", "m", [])
        loading = ErrorCode.coordinator_load_in_progress
        assert (await house.join()).error_code == loading
        assert (await house.sync(nobody)).error_code == ErrorCode.rebalance_in_progress
        assert await house.heartbeat(nobody) == 0
        assert (await house.coordinator.leave_group(LeaveGroup("g", []))).error_code == loading
        assert await house.commit(1) == loading
        described = await house.coordinator.describe_groups(DescribeGroups(["g"]))
        assert described.groups[0].error_code == loading
        assert (await house.coordinator.delete_groups(DeleteGroups(["g"]))).error_codes == [loading]
        assert await house.coordinator.commits.expire_once() == 0
        with pytest.raises(ControlUnavailable):
            await listing(house)

    in_virtual_time(test, start=False)


def test_closing_answers_those_who_wait() -> None:
    async def test(house: House) -> None:
        leader, _ = await house.stable(2)
        waiting = asyncio.create_task(house.join(leader.member_id))
        await house.pass_time(1)
        await house.coordinator.close()
        assert (await waiting).error_code == ErrorCode.not_coordinator
        assert (await house.join()).error_code == ErrorCode.not_coordinator

    in_virtual_time(test)


def test_group_ids_that_are_not_allowed_and_groups_that_are_not_there() -> None:
    async def test(house: House) -> None:
        for group_id in ("", "a\0b"):
            nobody = JoinAnswer(0, 1, None, None, "", "m", [])
            assert (await house.join(group_id=group_id)).error_code == ErrorCode.invalid_group_id
            assert (await house.sync(nobody, group_id=group_id)).error_code == ErrorCode.invalid_group_id
            assert await house.heartbeat(nobody, group_id=group_id) == ErrorCode.invalid_group_id
            assert (await house.coordinator.leave_group(LeaveGroup(group_id, []))).error_code == 24
        assert (await house.join("m")).error_code == ErrorCode.unknown_member_id
        assert (await house.sync(nobody)).error_code == ErrorCode.unknown_member_id
        assert await house.heartbeat(nobody) == ErrorCode.unknown_member_id
        left = await house.coordinator.leave_group(LeaveGroup("g", [LeavingMember("m", None)]))
        assert (left.error_code, left.member_error_codes) == (0, [ErrorCode.unknown_member_id])
        assert await listing(house) == []

    in_virtual_time(test)


def test_the_number_of_groups_is_bounded_and_refused_joins_leave_none_behind() -> None:
    async def test(house: House) -> None:
        assert (await house.join(group_id="bad", session_ms=1)).error_code == ErrorCode.invalid_session_timeout
        await house.join(group_id="pending", known=True)
        await house.stable(1, group_id="a")
        assert (await house.join(group_id="b")).error_code == ErrorCode.policy_violation
        assert await house.commit(1, group_id="b") == ErrorCode.policy_violation
        await house.pass_time(9)  # the pending member never comes, and its group goes with it
        await house.pass_time(2)
        assert (await house.join(group_id="b")).error_code == 0

    in_virtual_time(test, GroupSettings(initial_rebalance_delay_ms=0, groups_max=2))


def test_lists_and_descriptions() -> None:
    async def test(house: House) -> None:
        (joined,) = await house.stable(1, group_id="a")
        await house.commit(1, group_id="b")
        assert [each.group_id for each in await listing(house, "STABLE")] == ["a"]
        assert [each.group_id for each in await listing(house, "empty", types=("Classic",))] == ["b"]
        assert await listing(house, types=("share",)) == []
        a, b, c = (await house.coordinator.describe_groups(DescribeGroups(["a", "b", "c"]))).groups
        assert (a.state, a.protocol_name, a.members[0].member_id) == ("Stable", "range", joined.member_id)
        assert (a.members[0].client_host, a.members[0].metadata) == ("/127.0.0.1", RANGE.metadata)
        assert (b.error_code, b.state, b.protocol_type) == (0, "Empty", "")
        assert (c.error_code, c.state) == (ErrorCode.group_id_not_found, "Dead")

    in_virtual_time(test)


def test_deleting_groups() -> None:
    async def test(house: House) -> None:
        await house.stable(1, group_id="busy")
        await house.commit(1, group_id="idle")
        request = DeleteGroups(["busy", "idle", "nobody", "idle"])
        codes = (await house.coordinator.delete_groups(request)).error_codes
        assert codes == [ErrorCode.non_empty_group, 0, ErrorCode.group_id_not_found, ErrorCode.group_id_not_found]
        assert await house.committed(group_id="idle") == []
        await house.restart()
        assert [each.group_id for each in await listing(house)] == ["busy"]

    in_virtual_time(test)


def test_a_join_during_a_deletion_starts_a_new_group() -> None:
    async def test(house: House) -> None:
        await house.commit(1)
        deleting = asyncio.create_task(house.coordinator.delete_groups(DeleteGroups(["g"])))
        await asyncio.sleep(0)
        joined, _ = await asyncio.gather(house.join(), deleting)
        assert (await house.sync(joined, {joined.member_id: b"x"})).error_code == 0
        await house.restart()
        assert await house.heartbeat(joined) == 0
        assert await house.committed() == []

    in_virtual_time(test)


def test_a_failing_store_refuses_the_assignment_and_the_group_recovers() -> None:
    async def test(house: House) -> None:
        joined = await house.join()
        house.metadata.failure = MetadataUnavailable("the disk is gone")
        assert (await house.sync(joined, {})).error_code == ErrorCode.coordinator_not_available
        house.metadata.failure = None
        joined = await house.join(joined.member_id)
        assert (await house.sync(joined, {joined.member_id: b"x"})).assignment == b"x"

    in_virtual_time(test)


def test_a_fenced_coordinator_sends_its_members_elsewhere() -> None:
    async def test(house: House) -> None:
        joined = await house.join()
        await house.metadata.store.transact(lambda transaction: transaction.execute("UPDATE fencing SET epoch = 99"))
        assert (await house.sync(joined, {})).error_code == ErrorCode.not_coordinator
        await house.metadata.acquire_fencing_epoch()

    in_virtual_time(test)


def test_a_deletion_that_fails_takes_nothing_away() -> None:
    async def test(house: House) -> None:
        await house.commit(7)
        house.metadata.failure = MetadataUnavailable("the disk is gone")
        with pytest.raises(MetadataUnavailable):
            await house.coordinator.delete_groups(DeleteGroups(["g"]))
        house.metadata.failure = None
        assert [each.group_id for each in await listing(house)] == ["g"]
        assert await house.committed() == [7]
        assert (await house.coordinator.delete_groups(DeleteGroups(["g"]))).error_codes == [0]
        assert await listing(house) == []

    in_virtual_time(test)


def test_many_groups_share_transactions() -> None:
    async def test(house: House) -> None:
        await asyncio.gather(*(house.stable(10, group_id=f"g{number}") for number in range(20)))
        assert {each.state for each in await listing(house)} == {"Stable"}
        assert house.metadata.transaction_count <= 5
        await house.pass_time(11)
        assert {each.state for each in await listing(house)} == {"Empty"}

    in_virtual_time(test)


def test_members_that_join_at_once_need_no_delay_on_the_loop_that_processes_run_on() -> None:
    """uvloop's handle of a call without a delay does not know when it runs."""

    async def test() -> None:
        metadata = await open_metadata("sqlite://")
        await metadata.acquire_fencing_epoch()
        settings = GroupSettings(initial_rebalance_delay_ms=0)
        coordinator = GroupCoordinator(metadata, SystemClock(), SeededEntropy("uvloop"), settings, CommittedTopics({}))
        await coordinator.start()
        try:
            joined = await asyncio.gather(*(coordinator.join_group(join_request()) for _ in range(4)))
            assert [each.error_code for each in joined] == [0] * 4
        finally:
            await coordinator.close()
            await metadata.close()

    uvloop.run(test())
