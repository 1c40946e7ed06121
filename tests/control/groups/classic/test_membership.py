"""The state machine of one consumer group, driven by hand."""

import pytest
from kio.schema.errors import ErrorCode
from tests.control.groups.classic.driver import RANGE, REBALANCE_MS, SESSION_MS, STICKY, Driver, subscription

from braidlog.control.groups.settings import GroupSettings
from braidlog.control.groups.state import GroupState
from braidlog.control.interface import JoinProtocol
from braidlog.runtime.errors import InvalidSetting

SESSION_S = SESSION_MS / 1000
REBALANCE_S = REBALANCE_MS / 1000


def test_first_member_leads_and_gets_what_it_assigns() -> None:
    group = Driver()
    ticket = group.join()
    assert group.group.state is GroupState.PREPARING
    group.settle()
    joined = group.joins[ticket]
    assert (joined.error_code, joined.generation_id, joined.leader) == (0, 1, joined.member_id)
    assert (joined.protocol_type, joined.protocol_name) == ("consumer", "range")
    assert [member.metadata for member in joined.members] == [RANGE.metadata]
    assert group.group.state is GroupState.COMPLETING
    sync = group.sync(joined, {joined.member_id: b"mine", "stranger": b"x"})
    assert group.syncs[sync].assignment == b"mine"
    assert group.group.state is GroupState.STABLE
    assert group.saves[-1].group.members[0].assignment == b"mine"


def test_member_id_is_required_first() -> None:
    group = Driver()
    first = group.joins[group.join(known=True)]
    assert first.error_code == ErrorCode.member_id_required
    assert group.group.state is GroupState.EMPTY
    ticket = group.join(first.member_id, known=True)
    group.settle()
    assert group.joins[ticket].error_code == 0
    assert group.joins[ticket].member_id == first.member_id


def test_a_pending_id_expires() -> None:
    group = Driver()
    member_id = group.joins[group.join(known=True)].member_id
    group.run_for(SESSION_S)
    assert group.joins[group.join(member_id, known=True)].error_code == ErrorCode.unknown_member_id
    assert group.group.is_vacant


def test_a_rebalance_waits_for_pending_members_but_not_longer_than_their_session() -> None:
    group = Driver()
    (leader,) = group.stable(1)
    group.join(known=True)
    ticket = group.join(leader.member_id)
    assert ticket not in group.joins
    group.run_for(SESSION_S)
    assert group.joins[ticket].generation_id == 2


def test_initial_delay_extends_while_members_keep_coming() -> None:
    group = Driver(GroupSettings(initial_rebalance_delay_ms=3000))
    tickets = [group.join()]
    group.run_for(2)
    tickets.append(group.join())
    group.run_for(2)
    assert not group.joins
    tickets.append(group.join())
    group.run_for(1.9)
    assert not group.joins
    group.run_for(3.1)
    assert [group.joins[ticket].generation_id for ticket in tickets] == [1, 1, 1]
    assert len(group.joins[tickets[0]].members) == 3


def test_initial_delay_ends_with_the_rebalance_timeout() -> None:
    group = Driver(GroupSettings(initial_rebalance_delay_ms=3000))
    first = group.join(rebalance_ms=7000)
    for _ in range(6):
        group.run_for(1)
        group.join(rebalance_ms=7000)
    assert first not in group.joins
    group.run_for(1)
    assert group.joins[first].error_code == 0


def test_the_protocol_with_most_votes_among_the_common_ones_wins() -> None:
    group = Driver()
    a, b, c = JoinProtocol("a", b"1"), JoinProtocol("b", b"2"), JoinProtocol("c", b"3")
    tickets = [group.join(protocols=offer) for offer in ((c, a, b), (b, a), (b, a))]
    group.settle()
    assert {group.joins[ticket].protocol_name for ticket in tickets} == {"b"}
    assert [member.metadata for member in group.joins[tickets[0]].members] == [b"2"] * 3


def test_a_protocol_offered_twice_counts_once() -> None:
    group = Driver()
    first = group.join(protocols=(RANGE, JoinProtocol("range", b"other")))
    second = group.join(protocols=(RANGE,))
    group.settle()
    assert group.joins[first].error_code == group.joins[second].error_code == 0
    assert group.joins[first].members[0].metadata == RANGE.metadata
    group.leave(group.joins[second].member_id)
    group.leave(group.joins[first].member_id)
    group.settle()
    assert group.group.state is GroupState.EMPTY


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"protocols": (JoinProtocol("other", b""),)}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_type": "connect"}, ErrorCode.inconsistent_group_protocol),
        ({"protocols": ()}, ErrorCode.inconsistent_group_protocol),
        ({"session_ms": 5999}, ErrorCode.invalid_session_timeout),
        ({"session_ms": 1_800_001}, ErrorCode.invalid_session_timeout),
        ({"protocols": (JoinProtocol("range", bytes(1024 * 1024)),)}, ErrorCode.invalid_request),
    ],
)
def test_joins_that_are_refused(options: dict[str, object], error: ErrorCode) -> None:
    group = Driver()
    group.stable(1)
    assert group.joins[group.join(**options)].error_code == error
    assert group.group.state is GroupState.STABLE


def test_an_empty_group_needs_a_protocol_and_a_type() -> None:
    group = Driver()
    assert group.joins[group.join(protocols=())].error_code == ErrorCode.inconsistent_group_protocol
    assert group.joins[group.join(protocol_type="")].error_code == ErrorCode.inconsistent_group_protocol


def test_a_follower_that_joins_unchanged_gets_the_current_generation() -> None:
    group = Driver()
    _, follower = group.stable(2)
    answer = group.joins[group.join(follower.member_id)]
    assert (answer.error_code, answer.generation_id, answer.members) == (0, 1, [])
    assert group.group.state is GroupState.STABLE
    assert group.syncs[group.sync(answer)].assignment == b"1"


def test_a_leader_that_joins_again_rebalances() -> None:
    group = Driver()
    leader, follower = group.stable(2)
    group.join(leader.member_id)
    assert group.group.state is GroupState.PREPARING
    assert group.heartbeat(follower) is ErrorCode.rebalance_in_progress
    ticket = group.join(follower.member_id)
    assert group.joins[ticket].generation_id == 2
    assert group.joins[ticket].leader == leader.member_id


def test_changed_metadata_rebalances() -> None:
    group = Driver()
    leader, follower = group.stable(2)
    ticket = group.join(follower.member_id, protocols=(JoinProtocol("range", subscription("t", "u")),))
    assert group.group.state is GroupState.PREPARING
    group.join(leader.member_id)
    assert group.joins[ticket].generation_id == 2


def test_in_completing_an_unchanged_join_is_answered_again_and_a_changed_one_rebalances() -> None:
    group = Driver()
    ticket = group.join()
    group.settle()
    leader = group.joins[ticket]
    again = group.joins[group.join(leader.member_id)]
    assert (again.generation_id, len(again.members)) == (1, 1)
    changed = group.joins[group.join(leader.member_id, protocols=(RANGE, STICKY))]
    assert changed.generation_id == 2


def test_rebalance_timeout_removes_those_who_do_not_rejoin() -> None:
    group = Driver()
    leader, follower = group.stable(2)
    ticket = group.join()
    for _ in range(int(REBALANCE_S)):
        assert group.heartbeat(leader) is ErrorCode.rebalance_in_progress
        assert group.heartbeat(follower) is ErrorCode.rebalance_in_progress
        group.run_for(1)
    answer = group.joins[ticket]
    assert answer.error_code == 0
    assert answer.leader == answer.member_id
    assert [member.member_id for member in answer.members] == [answer.member_id]
    assert group.heartbeat(leader) is ErrorCode.unknown_member_id


def test_a_session_that_ends_rebalances_and_heartbeats_prevent_it() -> None:
    group = Driver()
    leader, follower = group.stable(2)
    group.run_for(SESSION_S / 2)
    assert group.heartbeat(leader) is ErrorCode.none
    group.run_for(SESSION_S / 2)
    assert group.heartbeat(leader) is ErrorCode.rebalance_in_progress
    assert group.heartbeat(follower) is ErrorCode.unknown_member_id
    ticket = group.join(leader.member_id)
    assert group.joins[ticket].generation_id == 2


def test_waiting_for_a_join_or_a_sync_counts_as_alive() -> None:
    group = Driver()
    leader, follower = group.stable(2)
    ticket = group.join(leader.member_id)
    for _ in range(5):
        group.run_for(SESSION_S * 0.9)
        group.heartbeat(follower)
    rejoined = group.joins[group.join(follower.member_id)]
    assert group.joins[ticket].generation_id == 2
    sync = group.sync(rejoined)
    for _ in range(3):
        group.run_for(SESSION_S * 0.9)
        assert group.heartbeat(group.joins[ticket]) is ErrorCode.none
    group.sync(group.joins[ticket], {rejoined.member_id: b"x"})
    assert group.syncs[sync].assignment == b"x"
    group.run_for(SESSION_S * 0.9)
    assert group.heartbeat(rejoined) is ErrorCode.none


def test_sync_in_preparing_and_with_wrong_generation_member_or_protocol() -> None:
    group = Driver()
    leader, follower = group.stable(2)

    def sync_error(answer: object) -> int:
        return group.syncs[group.sync(answer)].error_code  # type: ignore[arg-type]

    stale = follower.__class__(0, 7, "consumer", "range", "", follower.member_id, [])
    assert sync_error(stale) == ErrorCode.illegal_generation
    unknown = follower.__class__(0, 1, "consumer", "range", "", "nobody", [])
    assert sync_error(unknown) == ErrorCode.unknown_member_id
    other = follower.__class__(0, 1, "consumer", "roundrobin", "", follower.member_id, [])
    assert sync_error(other) == ErrorCode.inconsistent_group_protocol
    group.join(leader.member_id)
    assert sync_error(follower) == ErrorCode.rebalance_in_progress


def test_a_rebalance_sends_waiting_syncs_back() -> None:
    group = Driver()
    tickets = [group.join(), group.join()]
    group.settle()
    follower = group.joins[tickets[1]]
    sync = group.sync(follower)
    assert sync not in group.syncs
    group.join()
    assert group.syncs[sync].error_code == ErrorCode.rebalance_in_progress


def test_members_that_never_sync_are_removed() -> None:
    group = Driver()
    tickets = [group.join(), group.join()]
    group.settle()
    leader, follower = (group.joins[ticket] for ticket in tickets)
    group.sync(leader, {leader.member_id: b"a", follower.member_id: b"b"})
    for _ in range(int(REBALANCE_S)):
        group.heartbeat(leader)
        group.heartbeat(follower)
        group.run_for(1)
    assert group.heartbeat(follower) is ErrorCode.unknown_member_id
    assert group.heartbeat(leader) is ErrorCode.rebalance_in_progress


def test_an_assignment_counts_only_once_it_is_durable() -> None:
    group = Driver()
    group.hold_saves = True
    ticket = group.join()
    group.settle()
    leader = group.joins[ticket]
    first = group.sync(leader, {leader.member_id: b"first"})
    assert first not in group.syncs
    again = group.sync(leader, {leader.member_id: b"second"})
    assert group.syncs[first].error_code == ErrorCode.rebalance_in_progress
    assert len(group.saves) == 1
    group.finish_save(group.saves[0])
    assert group.syncs[again].assignment == b"first"


def test_a_failed_save_starts_over() -> None:
    group = Driver()
    group.hold_saves = True
    ticket = group.join()
    group.settle()
    leader = group.joins[ticket]
    sync = group.sync(leader, {leader.member_id: b"a"})
    group.finish_save(group.saves.pop(), ErrorCode.coordinator_not_available)
    assert group.syncs[sync].error_code == ErrorCode.coordinator_not_available
    assert group.group.state is GroupState.PREPARING
    rejoined = group.joins[group.join(leader.member_id)]
    sync = group.sync(rejoined, {rejoined.member_id: b"b"})
    group.finish_save(group.saves.pop())
    assert group.syncs[sync].assignment == b"b"


def test_a_save_that_comes_too_late_changes_nothing() -> None:
    group = Driver()
    group.hold_saves = True
    ticket = group.join()
    group.settle()
    leader = group.joins[ticket]
    sync = group.sync(leader, {leader.member_id: b"a"})
    newcomer = group.join()
    assert group.syncs[sync].error_code == ErrorCode.rebalance_in_progress
    group.finish_save(group.saves[0])
    assert group.group.state is GroupState.PREPARING
    group.join(leader.member_id)
    assert group.joins[newcomer].generation_id == 2


def test_leaving_rebalances_and_the_last_one_empties_the_group() -> None:
    group = Driver()
    leader, follower = group.stable(2)
    assert group.leave(leader.member_id) == 0
    assert group.heartbeat(follower) is ErrorCode.rebalance_in_progress
    assert group.leave(leader.member_id) == ErrorCode.unknown_member_id
    assert group.leave(follower.member_id) == 0
    assert (group.group.state, group.group.generation_id) == (GroupState.EMPTY, 2)
    assert group.saves[-1].group.members == []
    assert group.group.listing().protocol_type == "consumer"


def test_a_pending_member_can_leave_without_a_rebalance() -> None:
    group = Driver()
    group.stable(1)
    pending = group.joins[group.join(known=True)].member_id
    assert group.leave(pending) == 0
    assert group.group.state is GroupState.STABLE


def test_a_full_group_refuses_newcomers_and_keeps_its_members() -> None:
    group = Driver(GroupSettings(initial_rebalance_delay_ms=0, members_per_group_max=2))
    leader, follower = group.stable(2)
    assert group.joins[group.join()].error_code == ErrorCode.group_max_size_reached
    tickets = [group.join(leader.member_id), group.join(follower.member_id)]
    assert [group.joins[ticket].generation_id for ticket in tickets] == [2, 2]


def test_pending_ids_are_bounded() -> None:
    group = Driver(GroupSettings(initial_rebalance_delay_ms=0, members_per_group_max=2))
    codes = [group.joins[group.join(known=True)].error_code for _ in range(3)]
    assert codes == [ErrorCode.member_id_required] * 2 + [ErrorCode.group_max_size_reached]


def test_the_metadata_of_a_group_is_bounded() -> None:
    group = Driver(GroupSettings(initial_rebalance_delay_ms=0, group_metadata_bytes_max=2 * (len(RANGE.metadata) + 5)))
    _leader, follower = group.stable(2)
    assert group.joins[group.join()].error_code == ErrorCode.group_max_size_reached
    bigger = group.join(follower.member_id, protocols=(RANGE, STICKY))
    assert group.joins[bigger].error_code == ErrorCode.group_max_size_reached
    assert group.group.state is GroupState.PREPARING
    assert len(group.group.describe().members) == 1


def test_a_lowered_limit_turns_the_last_to_rejoin_away() -> None:
    group = Driver()
    joined = group.stable(3)
    restored = Driver(GroupSettings(initial_rebalance_delay_ms=0, members_per_group_max=2), group.saves[-1].group)
    assert restored.group.state is GroupState.PREPARING
    tickets = [restored.join(answer.member_id) for answer in joined]
    codes = [restored.joins[ticket].error_code for ticket in tickets]
    assert codes == [0, 0, ErrorCode.group_max_size_reached]


def test_too_large_an_assignment_is_refused() -> None:
    group = Driver(GroupSettings(initial_rebalance_delay_ms=0, assignment_bytes_max=3))
    ticket = group.join()
    group.settle()
    leader = group.joins[ticket]
    sync = group.sync(leader, {leader.member_id: b"four"})
    assert group.syncs[sync].error_code == ErrorCode.unknown_server_error
    assert group.group.state is GroupState.PREPARING


def test_a_new_member_whose_connection_goes_is_forgotten() -> None:
    group = Driver()
    leader, _ = group.stable(2)
    ticket = group.join()
    group.abandon(ticket)
    assert len(group.group.describe().members) == 2
    assert group.group.state is GroupState.PREPARING
    group.join(leader.member_id)
    group.run_for(SESSION_S)
    assert group.group.state is GroupState.COMPLETING


def test_a_known_member_whose_connection_goes_may_come_back_in_time() -> None:
    group = Driver()
    leader, follower = group.stable(2)
    group.abandon(group.join(leader.member_id))
    follower_ticket = group.join(follower.member_id)
    assert follower_ticket not in group.joins
    ticket = group.join(leader.member_id)
    assert group.joins[ticket].generation_id == group.joins[follower_ticket].generation_id == 2
    group.abandon(ticket)  # answered long ago: no effect
    assert len(group.group.describe().members) == 2


def test_a_known_member_that_stays_away_is_removed_after_its_session() -> None:
    group = Driver()
    leader, follower = group.stable(2)
    group.abandon(group.join(leader.member_id))
    ticket = group.join(follower.member_id)
    group.run_for(SESSION_S)
    assert group.joins[ticket].leader == follower.member_id


def test_an_abandoned_sync_leaves_the_member_to_its_session() -> None:
    group = Driver()
    tickets = [group.join(), group.join()]
    group.settle()
    leader, follower = (group.joins[ticket] for ticket in tickets)
    group.abandon(group.sync(follower))
    group.run_for(SESSION_S / 2)
    group.sync(leader, {follower.member_id: b"x"})
    assert group.heartbeat(follower) is ErrorCode.none
    assert group.syncs[group.sync(follower)].assignment == b"x"


def test_a_parked_new_member_is_given_up_eventually() -> None:
    group = Driver(GroupSettings(initial_rebalance_delay_ms=0, new_member_join_timeout_ms=20_000))
    (leader,) = group.stable(1)
    ticket = group.join()
    for _ in range(20):
        group.heartbeat(leader)
        group.run_for(1)
    assert group.joins[ticket].error_code == ErrorCode.unknown_member_id


def test_a_repeated_join_replaces_the_first() -> None:
    group = Driver()
    leader, follower = group.stable(2)
    first = group.join(leader.member_id)
    second = group.join(leader.member_id)
    assert group.joins[first].error_code == ErrorCode.rebalance_in_progress
    group.join(follower.member_id)
    assert group.joins[second].generation_id == 2


def test_commits_are_checked_against_member_and_state() -> None:
    group = Driver()
    assert group.commit() is ErrorCode.none
    leader, follower = group.stable(2)
    assert group.commit() is ErrorCode.unknown_member_id
    assert group.commit(1, leader.member_id) is ErrorCode.none
    assert group.commit(0, leader.member_id) is ErrorCode.illegal_generation
    assert group.commit(1, "nobody") is ErrorCode.unknown_member_id
    assert group.commit(-1, leader.member_id) is ErrorCode.illegal_generation
    group.join(leader.member_id)
    assert group.commit(1, follower.member_id) is ErrorCode.none
    group.join(follower.member_id)
    assert group.group.state is GroupState.COMPLETING
    assert group.commit(2, follower.member_id) is ErrorCode.rebalance_in_progress
    assert group.commit(1, follower.member_id) is ErrorCode.illegal_generation


def test_a_commit_keeps_a_member_alive() -> None:
    group = Driver()
    (leader,) = group.stable(1)
    for _ in range(4):
        group.run_for(SESSION_S * 0.9)
        assert group.commit(1, leader.member_id) is ErrorCode.none


def test_restored_members_go_on_with_their_generation_and_a_fresh_session() -> None:
    before = Driver()
    leader, follower = before.stable(2)
    after = Driver(saved=before.saves[-1].group)
    assert after.group.state is GroupState.STABLE
    after.run_for(SESSION_S * 0.9)
    assert after.heartbeat(leader) is ErrorCode.none
    assert after.syncs[after.sync(follower)].assignment == b"1"
    assert after.joins[after.join(follower.member_id)].generation_id == 1
    after.run_for(SESSION_S * 0.9)
    assert after.heartbeat(follower) is ErrorCode.none


def test_a_dead_group_sends_everyone_away() -> None:
    group = Driver()
    leader, _ = group.stable(2)
    waiting = group.join(leader.member_id)
    group.take(group.group.shut_down(ErrorCode.not_coordinator))
    assert group.joins[waiting].error_code == ErrorCode.not_coordinator
    assert group.joins[group.join()].error_code == ErrorCode.coordinator_not_available
    assert group.heartbeat(leader) is ErrorCode.coordinator_not_available
    assert group.commit() is ErrorCode.coordinator_not_available
    assert group.group.next_deadline_s() is None


def test_what_a_group_is_subscribed_to() -> None:
    group = Driver()
    assert not group.group.is_subscribed("t")
    group.stable(2)
    assert group.group.is_subscribed("t")
    assert not group.group.is_subscribed("u")
    assert group.group.is_subscribed(None)
    hostile = Driver()
    hostile.stable(1, protocols=(JoinProtocol("range", b"\xff\xff\xff\xff"),))
    assert hostile.group.is_subscribed("anything")
    connect = Driver()
    connect.stable(1, protocols=(JoinProtocol("range", b"\xff"),), protocol_type="connect")
    assert not connect.group.is_subscribed("anything")


def test_descriptions_hide_metadata_during_a_rebalance() -> None:
    group = Driver()
    (leader,) = group.stable(1)
    description = group.group.describe()
    assert (description.state, description.protocol_name) == ("Stable", "range")
    assert (description.members[0].metadata, description.members[0].assignment) == (RANGE.metadata, b"0")
    group.join()
    description = group.group.describe()
    assert (description.state, description.protocol_name) == ("PreparingRebalance", "")
    assert description.members[0].member_id == leader.member_id
    assert (description.members[0].metadata, description.members[0].assignment) == (b"", b"")


@pytest.mark.parametrize(
    "options",
    [
        {"session_timeout_ms_min": 0},
        {"session_timeout_ms_min": 9, "session_timeout_ms_max": 8},
        {"initial_rebalance_delay_ms": -1},
        {"members_per_group_max": 0},
    ],
)
def test_settings_that_cannot_work(options: dict[str, int]) -> None:
    with pytest.raises(InvalidSetting):
        GroupSettings(**options)


def test_a_save_of_the_last_generation_does_not_assign_in_this_one() -> None:
    group = Driver()
    group.hold_saves = True
    ticket = group.join()
    group.settle()
    leader = group.joins[ticket]
    group.sync(leader, {leader.member_id: b"old"})
    late_save = group.saves.pop()
    newcomer = group.join()
    leader = group.joins[group.join(leader.member_id)]
    assert (leader.generation_id, group.group.state) == (2, GroupState.COMPLETING)
    sync = group.sync(group.joins[newcomer])
    group.finish_save(late_save)
    assert group.group.state is GroupState.COMPLETING
    group.sync(leader, {group.joins[newcomer].member_id: b"new"})
    group.finish_save(group.saves.pop())
    assert group.syncs[sync].assignment == b"new"
