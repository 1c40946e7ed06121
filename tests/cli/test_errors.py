"""Errors as people see them."""

import json
from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException

from braidlog.cli.errors import explain, tell_outcomes
from braidlog.cli.output import OutputFormat
from braidlog.clients.errors import CommandError, failures_of
from braidlog.runtime.errors import BraidError, Remedy


def test_unexpected_errors_are_explained_too() -> None:
    assert explain(KeyError("x"))[0] == "KeyError: 'x'"
    assert explain(FileNotFoundError(2, "No such file", "/x")) == ("No such file: /x", "Check the path or address.")

    class Busy(BraidError):
        remedy = Remedy.RETRY

    assert explain(Busy("too much")) == ("too much", "It may pass: try again.")


@pytest.mark.parametrize("kind", Remedy)
def test_errors_without_help_of_their_own_get_a_sentence(kind: Remedy) -> None:
    class Wrong(BraidError):
        remedy = kind

    advice = explain(Wrong("wrong"))[1]
    assert len(advice.split()) > 3
    assert advice.endswith(".")


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (KafkaError.NOT_CONTROLLER, "Is the control plane running?"),
        (KafkaError.COORDINATOR_NOT_AVAILABLE, "Is the control plane running?"),
        (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, "it may pass"),
        (KafkaError.REQUEST_TIMED_OUT, "it may pass"),
        (KafkaError.POLICY_VIOLATION, "it will not pass"),
        (KafkaError.MSG_SIZE_TOO_LARGE, "max.message.bytes"),
        (KafkaError._BAD_MSG, "it will not pass"),
    ],
)
def test_what_may_pass_is_told_by_the_code(code: int, says: str) -> None:
    assert says in explain(KafkaException(KafkaError(code)))[1]


def test_what_nobody_answers_in_time_is_told_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("braidlog.clients.kafka_client.CALL_TIMEOUT_S", 0.01)
    answered: Future[None] = Future()
    answered.set_result(None)
    failures = failures_of({"a": answered, "b": Future()})
    with pytest.raises(CommandError, match="the outcome for 'b' is unknown"):
        tell_outcomes(OutputFormat.JSON, "topic", "created", {"a": True, "b": False}, failures)
    rows = json.loads(capsys.readouterr().out)
    assert [(row["topic"], row["created"]) for row in rows] == [("a", True), ("b", None)]
