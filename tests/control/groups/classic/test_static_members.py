"""Static members: those with a group instance id, who may restart without a rebalance."""

from kio.schema.errors import ErrorCode
from tests.control.groups.classic.driver import RANGE, REBALANCE_MS, SESSION_MS, STICKY, Driver, subscription

from braidlog.control.groups.settings import GroupSettings
from braidlog.control.groups.state import GroupState
from braidlog.control.interface import JoinAnswer, JoinProtocol

SESSION_S = SESSION_MS / 1000
REBALANCE_S = REBALANCE_MS / 1000


def static_pair(group: Driver) -> tuple[JoinAnswer, JoinAnswer]:
    """A stable group of the instances a, which leads, and b."""
    tickets = [group.join(instance="a"), group.join(instance="b")]
    group.settle()
    leader, follower = (group.joins[ticket] for ticket in tickets)
    group.sync(leader, {leader.member_id: b"0", follower.member_id: b"1"}, instance="a")
    group.sync(follower, instance="b")
    return leader, follower


def test_static_members_need_no_second_join() -> None:
    group = Driver()
    ticket = group.join(instance="a", known=True)
    group.settle()
    assert group.joins[ticket].error_code == 0


def test_a_restart_within_the_session_keeps_the_assignment_and_fences_the_old_one() -> None:
    group = Driver()
    leader, follower = static_pair(group)
    group.run_for(SESSION_S * 0.9)
    assert group.heartbeat(leader, instance="a") is ErrorCode.none
    back = group.joins[group.join(instance="b")]
    assert (back.error_code, back.generation_id, back.leader) == (0, 1, leader.member_id)
    assert back.member_id != follower.member_id
    assert (back.members, back.skip_assignment) == ([], False)
    assert group.group.state is GroupState.STABLE
    assert group.syncs[group.sync(back, instance="b")].assignment == b"1"
    assert group.heartbeat(follower, instance="b") is ErrorCode.fenced_instance_id
    assert group.commit(1, follower.member_id, instance="b") is ErrorCode.fenced_instance_id
    assert group.joins[group.join(follower.member_id, instance="b")].error_code == ErrorCode.fenced_instance_id
    assert group.leave(follower.member_id, instance="b") == ErrorCode.fenced_instance_id
    stale_sync = group.sync(follower, instance="b")
    assert group.syncs[stale_sync].error_code == ErrorCode.fenced_instance_id
    group.run_for(SESSION_S * 0.9)
    assert group.heartbeat(back, instance="b") is ErrorCode.none
    assert [member.member_id for member in group.saves[-1].group.members] == [leader.member_id, back.member_id]


def test_a_leader_that_restarts_is_told_to_skip_the_assignment() -> None:
    group = Driver()
    static_pair(group)
    back = group.joins[group.join(instance="a")]
    assert (back.leader, back.skip_assignment, back.generation_id) == (back.member_id, True, 1)
    assert [member.group_instance_id for member in back.members] == ["a", "b"]
    assert group.saves[-1].group.leader == back.member_id
    assert group.syncs[group.sync(back, instance="a")].assignment == b"0"
    assert group.group.state is GroupState.STABLE


def test_a_restart_beyond_the_session_rebalances() -> None:
    group = Driver()
    leader, follower = static_pair(group)
    for _ in range(11):
        group.run_for(SESSION_S / 10)
        group.heartbeat(leader, instance="a")
    assert group.heartbeat(leader, instance="a") is ErrorCode.rebalance_in_progress
    assert group.heartbeat(follower, instance="b") is ErrorCode.unknown_member_id
    ticket = group.join(instance="b")
    group.join(leader.member_id, instance="a")
    assert group.joins[ticket].generation_id == 2


def test_a_restart_with_another_protocol_rebalances() -> None:
    group = Driver()
    tickets = [group.join(instance=name, protocols=(RANGE, STICKY)) for name in "ab"]
    group.settle()
    leader, follower = (group.joins[ticket] for ticket in tickets)
    group.sync(leader, instance="a")
    group.sync(follower, instance="b")
    ticket = group.join(instance="b", protocols=(STICKY,))
    assert group.group.state is GroupState.PREPARING
    group.join(leader.member_id, instance="a", protocols=(RANGE, STICKY))
    assert (group.joins[ticket].generation_id, group.joins[ticket].protocol_name) == (2, "cooperative-sticky")


def test_a_restart_while_completing_rebalances() -> None:
    group = Driver()
    tickets = [group.join(instance="a"), group.join(instance="b")]
    group.settle()
    leader, follower = (group.joins[ticket] for ticket in tickets)
    waiting = group.sync(follower, instance="b")
    back = group.join(instance="b")
    assert group.syncs[waiting].error_code == ErrorCode.fenced_instance_id
    assert group.group.state is GroupState.PREPARING
    group.join(leader.member_id, instance="a")
    assert group.joins[back].generation_id == 2


def test_a_restart_while_preparing_fences_the_waiting_join() -> None:
    group = Driver()
    leader, follower = static_pair(group)
    group.join()
    waiting = group.join(follower.member_id, instance="b")
    back = group.join(instance="b")
    assert group.joins[waiting].error_code == ErrorCode.fenced_instance_id
    group.join(leader.member_id, instance="a")
    assert (group.joins[back].error_code, group.joins[back].generation_id) == (0, 2)


def test_a_failed_save_of_the_new_id_brings_the_old_one_back() -> None:
    group = Driver()
    _, follower = static_pair(group)
    group.hold_saves = True
    ticket = group.join(instance="b", protocols=(RANGE, STICKY), session_ms=20_000)
    assert ticket not in group.joins
    group.finish_save(group.saves[-1], ErrorCode.coordinator_not_available)
    assert group.joins[ticket].error_code == ErrorCode.coordinator_not_available
    assert group.heartbeat(follower, instance="b") is ErrorCode.none
    group.hold_saves = False
    assert group.joins[group.join(follower.member_id, instance="b")].generation_id == 1


def test_a_rebalance_overtakes_the_save_of_a_new_id() -> None:
    group = Driver()
    leader, _ = static_pair(group)
    group.hold_saves = True
    back = group.join(instance="b")
    save = group.saves[-1]
    group.join(leader.member_id, instance="a")
    assert group.joins[back].generation_id == 2
    group.finish_save(save, ErrorCode.coordinator_not_available)
    assert group.heartbeat(group.joins[back], instance="b") is ErrorCode.none


def test_an_administrator_removes_by_instance_id() -> None:
    group = Driver()
    leader, _ = static_pair(group)
    assert group.leave("", instance="nobody") == ErrorCode.unknown_member_id
    assert group.leave("") == ErrorCode.unknown_member_id
    assert group.leave("", instance="b") == 0
    assert group.heartbeat(leader, instance="a") is ErrorCode.rebalance_in_progress


def test_an_unknown_instance_with_a_member_id_starts_over() -> None:
    group = Driver()
    leader, _ = static_pair(group)
    assert group.joins[group.join(leader.member_id, instance="z")].error_code == ErrorCode.unknown_member_id
    assert group.heartbeat(leader, instance="z") is ErrorCode.unknown_member_id
    pending = group.joins[group.join(known=True)].member_id
    assert group.joins[group.join(pending, instance="z")].error_code == ErrorCode.unknown_member_id


def test_absent_static_members_stay_through_a_rebalance_until_their_session_ends() -> None:
    group = Driver()
    leader, follower = static_pair(group)
    newcomer = group.join(rebalance_ms=5000, session_ms=6000)
    group.join(leader.member_id, instance="a", rebalance_ms=5000)
    group.take(group.group.advance(group.now_s))
    for _ in range(int(REBALANCE_S)):
        group.heartbeat(follower, instance="b")
        group.run_for(1)
    answer = group.joins[newcomer]
    assert answer.error_code == 0
    assert {member.group_instance_id for member in group.group.describe().members} >= {"a", "b"}


def test_nobody_rejoins_and_the_group_empties() -> None:
    group = Driver(GroupSettings(initial_rebalance_delay_ms=0))
    static_pair(group)
    group.abandon(group.join())
    assert group.group.state is GroupState.PREPARING
    group.run_for(REBALANCE_S + SESSION_S)
    assert group.group.state is GroupState.EMPTY


def test_a_full_group_lets_a_static_member_restart() -> None:
    group = Driver(GroupSettings(initial_rebalance_delay_ms=0, members_per_group_max=2))
    static_pair(group)
    assert group.joins[group.join(instance="b")].error_code == 0
    assert group.joins[group.join(instance="c")].error_code == ErrorCode.group_max_size_reached


def test_a_restart_with_other_topics_rebalances_but_other_notes_in_the_metadata_do_not() -> None:
    group = Driver()
    static_pair(group)
    noted = group.joins[group.join(instance="b", protocols=(JoinProtocol("range", RANGE.metadata + b"owned"),))]
    assert (noted.error_code, noted.generation_id) == (0, 1)
    group.join(instance="b", protocols=(JoinProtocol("range", subscription("t", "u")),))
    assert group.group.state is GroupState.PREPARING


def test_static_members_of_other_protocol_types_are_not_looked_into() -> None:
    group = Driver()
    ticket = group.join(instance="a", protocol_type="connect")
    group.settle()
    group.sync(group.joins[ticket], instance="a")
    protocols = (JoinProtocol("range", subscription("other")),)
    back = group.joins[group.join(instance="a", protocol_type="connect", protocols=protocols)]
    assert (back.error_code, back.generation_id) == (0, 1)


def test_a_slow_save_of_the_new_id_does_not_cost_the_session() -> None:
    group = Driver()
    leader, _ = static_pair(group)
    group.hold_saves = True
    back = group.join(instance="b")
    for _ in range(3):
        group.run_for(SESSION_S * 0.5)
        assert group.heartbeat(leader, instance="a") is ErrorCode.none
    group.finish_save(group.saves[-1])
    assert group.joins[back].generation_id == 1
    group.run_for(SESSION_S * 0.9)
    assert group.heartbeat(group.joins[back], instance="b") is ErrorCode.none
    group.run_for(SESSION_S)
    assert group.heartbeat(group.joins[back], instance="b") is ErrorCode.unknown_member_id
