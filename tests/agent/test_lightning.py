"""Lightning topics from the write path to the log, in virtual time: what is kept, and what is given up for latency."""

from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode
from tests.agent.lightning_world import LightningWorld, run_lightning

from braidlog.configs.resources import TOPIC_RESOURCE
from braidlog.control.interface import AlterConfigs, ConfigChange, ReplayTask
from braidlog.objects.keys import JOURNAL_PREFIX, journal_key
from braidlog.objects.store import StoreUnavailable


def journal_keys(world: LightningWorld) -> list[str]:
    return [key for key in world.bucket.keys if key.startswith(JOURNAL_PREFIX)]


def test_records_are_in_the_log_in_their_order_and_only_once(tmp_path: Path) -> None:
    async def test(world: LightningWorld) -> None:
        await world.start()
        producer = await world.new_producer()
        for number in range(20):
            assert await world.write(number, producer) == 0
        assert await world.wait_read(20) == list(range(20))
        statistics = world.service.parts.journals.statistics()
        assert (statistics.fast_files, statistics.slow_files) == (20, 0)
        await world.clock.sleep(120.0)
        assert await world.read() == list(range(20))
        await world.close()

    run_lightning(tmp_path, test)


def test_the_end_of_an_agents_sequence_is_known_when_it_stops(tmp_path: Path) -> None:
    async def test(world: LightningWorld) -> None:
        await world.start()
        for number in range(3):
            await world.write(number)
        await world.wait_read(3)
        await world.close()
        assert len(journal_keys(world)) == 3  # no fences

    run_lightning(tmp_path, test)


async def lost_and_then_one_more(world: LightningWorld, producer: int) -> None:
    world.control.loses_commits = True
    assert await world.write(0, producer) == 0
    await world.clock.sleep(2.0)  # the agent gives up, and leaves the file where it is
    assert world.agent.write_path.journal.statistics()[2].left == 1
    world.control.loses_commits = False
    assert await world.write(1, producer) == 0


@pytest.mark.parametrize("is_idempotent", [True, False])
def test_files_do_not_wait_for_the_answer_to_the_one_before(tmp_path: Path, is_idempotent: bool) -> None:
    """A commit takes most of a file's time, and files come much faster. None is left to be replayed."""

    async def test(world: LightningWorld) -> None:
        await world.start()
        producer = await world.new_producer() if is_idempotent else -1
        world.control.commit_s = 0.4
        for number in range(100):
            assert await world.write(number, producer) == 0
        assert await world.wait_read(100) == list(range(100))
        statistics = world.service.parts.journals.statistics()
        assert (statistics.fast_files, statistics.slow_files, statistics.held_batches) == (100, 0, 0)
        await world.close()

    run_lightning(tmp_path, test)


def test_external_consistency_is_lost_without_idempotence(tmp_path: Path) -> None:
    """Acknowledged one after the other, and in the log the other way round."""

    async def test(world: LightningWorld) -> None:
        await world.start()
        await lost_and_then_one_more(world, -1)
        assert world.told == [(0, 0), (1, 0)]
        assert await world.wait_read(2) == [1, 0]
        await world.close()

    run_lightning(tmp_path, test)


def test_external_consistency_is_kept_by_an_idempotent_producer(tmp_path: Path) -> None:
    """The second one waits for the first one to be replayed."""

    async def test(world: LightningWorld) -> None:
        await world.start()
        await lost_and_then_one_more(world, await world.new_producer())
        assert world.told == [(0, 0), (1, 0)]
        await world.clock.sleep(0.5)
        assert await world.read() == []
        assert world.service.parts.journals.statistics().held_batches == 1
        assert await world.wait_read(2) == [0, 1]
        statistics = world.service.parts.journals.statistics()
        assert (statistics.slow_files, statistics.gaps_given_up, statistics.held_batches) == (1, 0, 0)
        await world.close()

    run_lightning(tmp_path, test)


@pytest.mark.parametrize("seed", range(2))
def test_an_agent_dies_right_after_acknowledging(tmp_path: Path, seed: int) -> None:
    """Nothing was committed. Its sequence is found, sealed and replayed by the next agent."""

    async def test(world: LightningWorld) -> None:
        await world.start()
        producers = [await world.new_producer() for _ in range(2)]
        world.control.loses_commits = True
        for number in range(10):
            assert await world.write(number, producers[number % 2], sequence=number // 2) == 0
        world.process.kill()
        assert await world.read() == []
        await world.boot("another agent")
        numbers = await world.wait_read(10)
        assert [number for number in numbers if number % 2 == 0] == [0, 2, 4, 6, 8]
        assert [number for number in numbers if number % 2 == 1] == [1, 3, 5, 7, 9]
        for number in range(10, 14):
            assert await world.write(number, producers[number % 2], sequence=number // 2) == 0
        numbers = await world.wait_read(14)
        await world.clock.sleep(300.0)
        assert await world.read() == numbers
        assert sorted(numbers) == list(range(14))
        await world.close()

    run_lightning(tmp_path, test, seed)


def test_a_pause_between_the_put_and_the_acknowledgement_while_the_sequence_is_sealed(tmp_path: Path) -> None:
    async def test(world: LightningWorld) -> None:
        await world.start()
        producer = await world.new_producer()
        task = ReplayTask(world.agent.incarnation, 0, 0, [], True)

        async def sealed(key: str) -> None:
            done = await world.replayer().replay(task)
            assert (done.sealed, done.listed[:2], done.fenced[0]) == (True, [0, 1], 1)

        world.store.after = sealed
        assert await world.write(0, producer) == 0
        assert await world.write(1, producer) == 0  # its slot is fenced
        assert await world.wait_read(2) == [0, 1]
        assert world.agent.write_path.journal.statistics()[1].sealed_out == 1
        assert journal_key(world.agent.incarnation, 1, 0) in journal_keys(world)
        await world.clock.sleep(300.0)
        assert await world.read() == [0, 1]
        await world.close()

    run_lightning(tmp_path, test)


def test_a_seal_that_comes_before_the_put(tmp_path: Path) -> None:
    async def test(world: LightningWorld) -> None:
        await world.start()
        task = ReplayTask(world.agent.incarnation, 0, 0, [], True)

        async def sealed(key: str) -> None:
            await world.replayer().replay(task)

        world.store.before = sealed
        assert await world.write(0) == 0
        assert await world.wait_read(1) == [0]
        await world.clock.sleep(300.0)
        assert await world.read() == [0]
        await world.close()

    run_lightning(tmp_path, test)


def test_an_agent_that_sleeps_until_its_sequence_may_be_gone_acknowledges_nothing(tmp_path: Path) -> None:
    """What it has written is sequenced all the same, and what its producer sends again is known."""

    async def test(world: LightningWorld) -> None:
        await world.start()
        producer = await world.new_producer()

        async def slept(key: str) -> None:
            await world.clock.sleep(130.0)

        world.store.after = slept
        assert await world.write(0, producer) == ErrorCode.not_enough_replicas_after_append
        assert await world.write(0, producer) == 0
        assert await world.write(1, producer) == 0
        assert await world.wait_read(2) == [0, 1]
        await world.clock.sleep(300.0)
        assert await world.read() == [0, 1]
        await world.close()

    run_lightning(tmp_path, test)


def test_behind_a_file_that_fails_a_producer_hears_that_it_should_send_again(tmp_path: Path) -> None:
    """Though the later file is in the journal, and in the log when the earlier one is."""

    async def test(world: LightningWorld) -> None:
        await world.start()
        producer = await world.new_producer()

        async def fail(key: str) -> None:
            await world.clock.sleep(0.1)
            raise StoreUnavailable("no")

        world.store.before = fail
        first = world.loop.create_task(world.write(0, producer))
        await world.clock.sleep(0.05)
        second = world.loop.create_task(world.write(1, producer))
        assert (await first, await second) == (
            ErrorCode.not_enough_replicas_after_append,
            ErrorCode.not_enough_replicas_after_append,
        )
        assert await world.write(0, producer) == 0
        assert await world.write(1, producer) == 0
        assert await world.wait_read(2) == [0, 1]
        await world.clock.sleep(60.0)
        assert await world.read() == [0, 1]
        assert world.service.parts.journals.statistics().duplicate_batches == 1
        await world.close()

    run_lightning(tmp_path, test)


@pytest.mark.parametrize("is_idempotent", [True, False])
def test_a_topic_that_is_classic_again_loses_nothing_of_its_journal(tmp_path: Path, is_idempotent: bool) -> None:
    async def test(world: LightningWorld) -> None:
        await world.start()
        producer = await world.new_producer() if is_idempotent else -1
        world.control.loses_commits = True
        assert await world.write(0, producer) == 0
        await world.clock.sleep(2.0)
        world.control.loses_commits = False
        await world.service.alter_configs(
            AlterConfigs(TOPIC_RESOURCE, "topic", [ConfigChange("braidlog.topic.type", 0, "classic")])
        )
        while world.agent.view.is_journaled(world.topic_id):
            await world.agent.view.wait_catalog_change()
        while code := await world.write(1, producer):
            assert code == ErrorCode.not_enough_replicas
            await world.clock.sleep(0.1)
        assert world.told[-1] == (1, 0)
        numbers = await world.wait_read(2)
        assert numbers == [0, 1] if is_idempotent else sorted(numbers) == [0, 1]
        assert len(journal_keys(world)) >= 1
        await world.clock.sleep(120.0)
        assert await world.read() == numbers
        await world.close()

    run_lightning(tmp_path, test)


def test_a_classic_topic_leaves_nothing_in_the_journal(tmp_path: Path) -> None:
    async def test(world: LightningWorld) -> None:
        await world.start(topic_type="classic")
        assert await world.write(0) == 0
        assert await world.read() == [0]
        assert journal_keys(world) == []
        await world.close()

    run_lightning(tmp_path, test)
