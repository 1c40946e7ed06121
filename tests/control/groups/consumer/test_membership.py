"""Groups of the consumer protocol: epochs, reconciliation, fencing, static members, subscriptions, restarts."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from tests.control.groups.consumer.driver import SESSION_S, Client, ConsumerDriver, Topics, heartbeat

from braidlog.control.groups.consumer.member import flat
from braidlog.control.groups.consumer.requests import Refused, check_heartbeat
from braidlog.control.groups.state import GroupState
from braidlog.control.interface import CommitOffsets

T = Topics.id_of("t")


def settle(clients: list[Client], rounds: int = 8) -> None:
    for _ in range(rounds):
        for client in clients:
            client.beat()
            client.reconcile()


def check_no_partition_twice(clients: list[Client]) -> None:
    owners = Counter(partition for client in clients if client.is_running for partition in client.owned)
    assert all(number == 1 for number in owners.values()), owners


def test_the_first_member_gets_everything_at_once() -> None:
    driver = ConsumerDriver(Topics(t=3))
    answer = driver.beat("a")
    assert (answer.error_code, answer.member_id) == (0, "a")
    assert answer.member_epoch == driver.group.group.group_epoch
    assert answer.assigned == [(T, [0, 1, 2])]
    assert answer.heartbeat_interval_ms == 1_000
    assert driver.group.state is GroupState.STABLE


def test_a_partition_is_given_only_after_it_was_given_up() -> None:
    driver = ConsumerDriver(Topics(t=2))
    first = driver.beat("a")
    everything = [(T, 0), (T, 1)]
    second = driver.beat("b")
    assert second.assigned == []
    assert driver.group.state is GroupState.RECONCILING
    told = driver.beat("a", first.member_epoch)
    assert told.assigned == [(T, [0])]
    assert told.member_epoch == first.member_epoch
    # It does not say what it still has, or still has it: nobody gets it.
    assert driver.beat("a", first.member_epoch).assigned is None
    assert driver.beat("a", first.member_epoch, owned=everything).assigned is None
    assert driver.beat("b", second.member_epoch).assigned is None
    done = driver.beat("a", first.member_epoch, owned=[(T, 0)])
    assert done.member_epoch == second.member_epoch > first.member_epoch
    assert driver.beat("b", second.member_epoch).assigned == [(T, [1])]
    assert driver.group.state is GroupState.STABLE


def test_who_does_not_let_go_in_time_is_out() -> None:
    driver = ConsumerDriver(Topics(t=2))
    first = driver.beat("a", rebalance_ms=3_000)
    second = driver.beat("b")
    driver.beat("a", first.member_epoch)
    driver.advance(2.9)
    assert driver.beat("a", first.member_epoch).error_code == 0
    driver.advance(0.2)
    assert driver.beat("a", first.member_epoch).error_code == ErrorCode.unknown_member_id
    assert flat(driver.beat("b", second.member_epoch).assigned or []) == {(T, 0), (T, 1)}


def test_a_silent_member_is_out_after_its_session() -> None:
    driver = ConsumerDriver(Topics(t=2))
    first = driver.beat("a")
    driver.advance(SESSION_S - 0.1)
    driver.beat("a", first.member_epoch)
    driver.advance(SESSION_S - 0.1)
    assert driver.group.knows("a")
    driver.advance(0.2)
    assert not driver.group.knows("a")
    assert driver.group.state is GroupState.EMPTY


def test_epochs_that_are_not_the_members_own_are_fenced() -> None:
    driver = ConsumerDriver(Topics(t=2))
    epoch = driver.beat("a").member_epoch
    assert driver.beat("a", epoch + 1).error_code == ErrorCode.fenced_member_epoch
    assert driver.beat("nobody", 1).error_code == ErrorCode.unknown_member_id
    driver.topics.put("t", 4)
    later = driver.beat("a", epoch)
    assert later.member_epoch > epoch
    # The answer may have been lost: the last epoch is good for a member that has nothing else.
    assert driver.beat("a", epoch).error_code == ErrorCode.fenced_member_epoch
    repeated = driver.beat("a", epoch, owned=[(T, 0), (T, 1)], topics=["t"], rebalance_ms=30_000)
    assert (repeated.error_code, repeated.member_epoch) == (0, later.member_epoch)
    assert flat(repeated.assigned or []) == {(T, index) for index in range(4)}
    assert driver.beat("a", epoch, owned=[(T, 9)]).error_code == ErrorCode.fenced_member_epoch


def test_a_fenced_member_joins_again_under_its_id() -> None:
    driver = ConsumerDriver(Topics(t=2))
    epoch = driver.beat("a").member_epoch
    again = driver.beat("a")
    assert (again.error_code, again.member_epoch) == (0, epoch)
    assert again.assigned == [(T, [0, 1])]


def test_topics_that_come_grow_and_go() -> None:
    driver = ConsumerDriver(Topics(t=1))
    client = Client(driver, "a", ["t", "later"])
    settle([client])
    assert client.owned == {(T, 0)}
    driver.topics.put("later", 2)
    driver.topics.put("t", 2)
    settle([client])
    assert client.owned == driver.topics.all_partitions("t", "later")
    driver.topics.remove("t")
    settle([client])
    assert client.owned == driver.topics.all_partitions("later")


def test_a_pattern_follows_the_topics_that_match() -> None:
    driver = ConsumerDriver(Topics(**{"orders-1": 1, "bills-1": 1}))
    answer = driver.beat("a", regex="orders-.*", topics=[])
    assert answer.assigned == [(Topics.id_of("orders-1"), [0])]
    driver.topics.put("orders-2", 1)
    answer = driver.beat("a", answer.member_epoch)
    assert flat(answer.assigned or []) == {(Topics.id_of("orders-1"), 0), (Topics.id_of("orders-2"), 0)}


def test_named_topics_come_before_those_that_match_a_pattern() -> None:
    driver = ConsumerDriver(Topics(**{"orders-1": 1, "bills-1": 1}))
    orders, bills = (Topics.id_of("orders-1"), 0), (Topics.id_of("bills-1"), 0)
    answer = driver.beat("a", topics=["bills-1"], regex="orders-.*")
    assert flat(answer.assigned or []) == {bills}
    answer = driver.beat("a", answer.member_epoch, owned=[bills])
    assert flat(answer.assigned or []) == {bills, orders}
    # Other names do not take away what the same pattern gave, and a pattern alone need not wait.
    driver.topics.put("notes", 1)
    answer = driver.beat("a", answer.member_epoch, topics=["bills-1", "notes"], owned=[bills, orders])
    assert flat(answer.assigned or []) == {bills, orders, (Topics.id_of("notes"), 0)}
    answer = driver.beat("a", 0, topics=[], regex="bills-.*", owned=[])
    assert flat(answer.assigned or []) == {bills}


def test_a_changed_subscription_gives_up_the_old_topic_first() -> None:
    driver = ConsumerDriver(Topics(t=2, u=2))
    epoch = driver.beat("a").member_epoch
    answer = driver.beat("a", epoch, topics=["u"])
    assert answer.assigned == []
    answer = driver.beat("a", answer.member_epoch, owned=[])
    assert answer.assigned == [(Topics.id_of("u"), [0, 1])]


@pytest.mark.parametrize(
    ("request_fields", "code"),
    [
        ({"member_id": ""}, ErrorCode.invalid_request),
        ({"epoch": -3}, ErrorCode.invalid_request),
        ({"epoch": -2}, ErrorCode.invalid_request),
        ({"instance": ""}, ErrorCode.invalid_request),
        ({"owned": [(T, 0)]}, ErrorCode.invalid_request),
        ({"assignor": "best"}, ErrorCode.unsupported_assignor),
        ({"regex": "("}, ErrorCode.invalid_regular_expression),
    ],
)
def test_wrong_requests_are_refused(request_fields: dict[str, object], code: ErrorCode) -> None:
    fields = {"member_id": "a", **request_fields}
    with pytest.raises(Refused) as refused:
        check_heartbeat(heartbeat(**fields))  # type: ignore[arg-type]
    assert refused.value.error is code


def test_static_members_come_back_to_what_they_had() -> None:
    driver = ConsumerDriver(Topics(t=4))
    one = Client(driver, "a", ["t"], "one")
    two = Client(driver, "b", ["t"], "two")
    settle([one, two])
    had, epoch = set(one.owned), driver.group.group.group_epoch
    assert driver.beat("z", instance="one").error_code == ErrorCode.unreleased_instance_id
    one.leave(-2)
    settle([two])
    assert two.owned == driver.topics.all_partitions("t") - had
    back = Client(driver, "a2", ["t"], "one")
    settle([back, two])
    assert back.owned == had
    assert driver.group.group.group_epoch == epoch, "nothing had to be assigned anew"
    assert driver.beat("a", epoch, instance="one").error_code == ErrorCode.fenced_instance_id
    assert driver.beat("a", -1, instance="one").error_code == ErrorCode.fenced_instance_id
    back.leave(-2)
    driver.advance(SESSION_S - 1)
    two.beat()
    driver.advance(2)
    settle([two])
    assert two.owned == driver.topics.all_partitions("t")


def test_commits_need_the_members_epoch() -> None:
    driver = ConsumerDriver(Topics(t=1))

    def check(member_id: str, epoch: int, *, knows: bool = True) -> ErrorCode:
        request = CommitOffsets("g", epoch, member_id, None, [], knows)
        return driver.group.check_commit(request, driver.now_s)

    assert check("", -1) is ErrorCode.none
    epoch = driver.beat("a").member_epoch
    assert check("a", epoch) is ErrorCode.none
    assert check("a", epoch - 1) is ErrorCode.stale_member_epoch
    assert check("a", epoch, knows=False) is ErrorCode.unsupported_version
    assert check("b", epoch) is ErrorCode.unknown_member_id
    assert check("", -1) is ErrorCode.unknown_member_id
    assert driver.group.check_fetch(None, -1) is ErrorCode.none
    assert driver.group.check_fetch("a", epoch) is ErrorCode.none
    assert driver.group.check_fetch("a", epoch + 1) is ErrorCode.stale_member_epoch
    assert driver.group.check_fetch("b", epoch) is ErrorCode.unknown_member_id


def test_nothing_is_told_before_it_is_durable() -> None:
    driver = ConsumerDriver(Topics(t=1))
    driver.hold_saves = True
    ticket = driver.send(heartbeat("a"))
    again = driver.send(heartbeat("a"))
    assert not driver.heartbeats
    driver.finish_save()
    assert driver.heartbeats[ticket] == driver.heartbeats[again]
    lost = driver.send(heartbeat("b"))
    driver.finish_save(ErrorCode.coordinator_not_available)
    assert driver.heartbeats[lost].error_code == ErrorCode.coordinator_not_available
    # What could not be written is written with the next change.
    driver.hold_saves = False
    assert driver.beat("b").error_code == 0
    driver.crash()
    assert driver.group.knows("a")
    assert driver.group.knows("b")


def test_a_restart_keeps_epochs_and_partitions() -> None:
    driver = ConsumerDriver(Topics(t=6))
    clients = [Client(driver, name, ["t"]) for name in "abc"]
    settle(clients)
    before = {client.member_id: (client.epoch, set(client.owned)) for client in clients}
    driver.crash()
    settle(clients)
    assert {client.member_id: (client.epoch, set(client.owned)) for client in clients} == before


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_choose_the_assignor(assignor: str) -> None:
    driver = ConsumerDriver(Topics(t=5, u=5))
    for name in "ab":
        driver.beat(name, topics=["t", "u"], assignor=assignor)
    shares = sorted(len(member.target) for member in driver.group.group)
    assert shares == ([5, 5] if assignor == "uniform" else [4, 6])
    assert driver.group.describe_consumer().assignor == assignor


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "beat", "beat", "beat", "beat", "reconcile", "reconcile", "reconcile", "lose", "kill", "leave", "away",
                "start", "grow", "silence", "crash", "fail",
            ]
        ),
        st.integers(0, 5),
    ),
    max_size=80,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_no_partition_is_ever_read_twice_and_none_is_left(steps: list[tuple[str, int]]) -> None:
    driver = ConsumerDriver(Topics(t=5, u=2))
    clients = [Client(driver, f"m{place}", ["t"] if place % 2 else ["t", "u"]) for place in range(3)]
    clients += [Client(driver, f"s{place}", ["t", "u"], f"static-{place}") for place in range(3)]
    incarnation = 0
    partition_count = 5
    for step, number in steps:
        client = clients[number]
        match step:
            case "beat":
                client.beat()
            case "reconcile":
                client.reconcile()
            case "lose":
                client.beat(lose_answer=True)
            case "kill":
                client.kill()
            case "leave" if client.is_running and client.epoch:
                client.leave()
            case "away" if client.is_running and client.epoch and client.instance:
                client.leave(-2)
            case "start" if not client.is_running:
                incarnation += 1
                clients[number] = Client(driver, f"{client.member_id}.{incarnation}", client.topics, client.instance)
            case "grow" if partition_count < 9:
                partition_count += 1
                driver.topics.put("t", partition_count)
            case "silence":
                # Everybody but this one is heard of until its session is over. It has noticed, and reads no more.
                for _ in range(3):
                    for each in clients:
                        if each is not client:
                            each.beat()
                    driver.advance(SESSION_S / 2)
                client.owned, client.wanted = set(), None
            case "crash":
                driver.crash()
            case "fail":
                driver.hold_saves = True
                client.beat()
                while driver.saves:
                    driver.finish_save(ErrorCode.coordinator_not_available)
                driver.hold_saves = False
        check_no_partition_twice(clients)
    # Those who died are found out, and the others end with everything, evenly.
    for _ in range(3):
        for client in clients:
            client.beat()
        driver.advance(SESSION_S / 2)
    settle(clients, rounds=12)
    check_no_partition_twice(clients)
    running = [client for client in clients if client.is_running]
    if running:
        read = set().union(*(client.owned for client in running))
        topics = {topic for client in running for topic in client.topics}
        assert read == driver.topics.all_partitions(*topics)
        assert driver.group.state is GroupState.STABLE
