"""The console's pages and tables, and what can be done there, on a real cluster."""

import base64
import json
import socket

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.console.driver import Driver

from braidlog.console.app import PAGES

HOSTILE = b"<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J\x1b]0;pwned\x07\xe2\x80\xae"


@pytest.fixture(scope="module")
def topic(console: Driver) -> str:
    client = AdminClient({"bootstrap.servers": console.bootstrap})
    for future in client.create_topics([NewTopic("orders", 3), NewTopic("settings", 1)]).values():
        future.result(60)
    producer = Producer({"bootstrap.servers": console.bootstrap})
    for number in range(30):
        producer.produce(
            "orders", key=str(number), value=f"order {number}", partition=number % 3, timestamp=1000 + number
        )
    assert producer.flush(60) == 0
    consumer = Consumer({"bootstrap.servers": console.bootstrap, "group.id": "billing", "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition("orders", number, 4) for number in range(3)], asynchronous=False)
    consumer.close()
    return "orders"


@pytest.mark.parametrize("path", [path for path in PAGES if "{" not in path])
def test_every_page_is_html_for_people_and_json_for_programs(console: Driver, topic: str, path: str) -> None:
    page = console.ask("GET", path, headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert page.status == 200
    assert page.headers["content-type"].startswith("text/html")
    assert b'<div id="console">' in page.body
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    told = console.get(path)
    assert isinstance(told, dict)
    assert console.ask("GET", path + "?format=json", headers={"accept": "text/html"}).told.keys() == told.keys()


def test_overview_says_what_runs(console: Driver) -> None:
    told = console.get("/")
    assert [agent["zone"] for agent in told["agents"]] == ["a"]
    assert told["active"].startswith("the control plane at ")
    assert [each["finding"] for each in told["findings"]] == told["troubles"]


def test_topics_are_searched_and_paged_by_the_server(console: Driver, topic: str) -> None:
    told = console.get("/topics?q=ORD&rows=1")
    assert [row["topic"] for row in told["rows"]] == ["orders"]
    assert told["rows"][0]["partitions"] == 3
    assert told["rows"][0]["bytes"] > 0
    everything = console.get("/topics")
    assert everything["total"] == len(everything["rows"])
    assert console.get("/topics?start=1&rows=1")["rows"] == everything["rows"][1:2]
    refused = console.ask("GET", "/topics?rows=100000")
    assert refused.status == 400
    assert "rows=100000" in refused.told["error"]


def test_a_topic_shows_offsets_and_where_configs_come_from(console: Driver, topic: str) -> None:
    told = console.get("/topics/orders")
    assert [row["high_watermark"] for row in told["rows"]] == [10, 10, 10]
    assert {"config": "retention.ms", "value": "604800000", "from": "default config"} in told["configs"]
    assert console.ask("GET", "/topics/no-such-topic").status == 404


def test_messages_are_read_from_any_place_and_filtered(console: Driver, topic: str) -> None:
    newest = console.get("/topics/orders/messages?count=5")
    assert [row["value"]["text"] for row in newest["rows"]] == [f"order {number}" for number in range(29, 24, -1)]
    first = console.get("/topics/orders/messages?from=beginning&partition=1&count=2")
    assert [row["key"]["text"] for row in first["rows"]] == ["1", "4"]
    later = console.get("/topics/orders/messages?from=8&partition=0")
    assert [row["offset"] for row in later["rows"]] == [8, 9]
    timed = console.get("/topics/orders/messages?from=@1027")
    assert sorted(row["timestamp_ms"] for row in timed["rows"]) == [1027, 1028, 1029]
    found = console.get("/topics/orders/messages?q=order%2017")
    assert [row["offset"] for row in found["rows"]] == [5]
    assert console.ask("GET", "/topics/orders/messages?from=nowhere").status == 400


def test_a_message_is_produced_and_said_to_be(console: Driver, topic: str) -> None:
    answer = console.act("POST", "/topics/settings/messages", {"key": "k", "value": "v", "headers": {"h": "x"}})
    assert answer.status == 200, answer.body
    assert answer.told["done"].startswith("produced to settings/0 at offset ")
    row = console.get("/topics/settings/messages?count=1")["rows"][0]
    assert (row["key"]["text"], row["value"]["text"], row["headers"][0]["name"]) == ("k", "v", "h")


@pytest.mark.parametrize(
    "value",
    [HOSTILE, b"\xff\xfe\x00binary", b"x" * 1_000_000, b"\xc3\xa9" * 500_000],
    ids=["html", "bytes", "1MB", "cut"],
)
def test_any_message_travels_as_json_and_can_be_downloaded(console: Driver, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": console.bootstrap, "message.max.bytes": 2_000_000})
    offsets: list[int] = []
    producer.produce("settings", key=value[:100], value=value, on_delivery=lambda _, m: offsets.append(m.offset()))
    assert producer.flush(60) == 0
    answer = console.ask("GET", f"/topics/settings/messages?partition=0&from={offsets[0]}&count=1")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert len(answer.body) < 100_000
    part = answer.told["rows"][0]["value"]
    shown = base64.b64decode(part["text"]) if part["kind"] == "base64" else part["text"].encode()
    assert value.startswith(shown)
    assert part["bytes"] == len(value)
    whole = console.ask("GET", f"/topics/settings/messages/0/{offsets[0]}")
    assert whole.body == value
    assert whole.headers["content-type"] == "application/octet-stream"
    assert whole.headers["content-disposition"].startswith("attachment")


def test_topics_are_created_altered_and_deleted(console: Driver) -> None:
    created = console.act("POST", "/topics", {"topic": "short-lived", "partitions": 2})
    assert created.told == {"done": "created short-lived with 2 partitions"}
    altered = console.act("PATCH", "/topics/short-lived", {"set": {"retention.ms": "1000"}})
    assert altered.told == {"done": "short-lived: retention.ms is 1000"}
    wrong = console.act("PATCH", "/topics/short-lived", {"set": {"retention.ms": "soon"}})
    assert wrong.status == 502
    assert "retention.ms" in wrong.told["error"]
    assert console.act("DELETE", "/topics/short-lived", {"confirm": "short"}).status == 400
    assert console.act("DELETE", "/topics/short-lived", {"confirm": "short-lived"}).status == 200
    assert console.ask("GET", "/topics/short-lived").status == 404


def test_groups_show_their_lag_and_their_offsets_move_after_a_preview(console: Driver, topic: str) -> None:
    (row,) = console.get("/groups?q=billing")["rows"]
    assert (row["group"], row["state"], row["lag"]) == ("billing", "empty", 18)
    move = {"topics": ["orders"], "to": "latest"}
    preview = console.act("POST", "/groups/billing", {**move, "preview": True}).told
    assert [(row["before"], row["after"]) for row in preview["rows"]] == [(4, 10)] * 3
    assert console.get("/groups/billing")["lag"] == 18
    assert (
        console.act("POST", "/groups/billing", {**move, "preview": False}).told["done"] == "moved 3 offsets of billing"
    )
    assert console.get("/groups/billing")["lag"] == 0
    console.act("POST", "/groups/billing", {"topics": ["orders"], "to": "4", "preview": False})
    assert console.ask("GET", "/groups/no/such/group").status == 404


def test_open_transactions_are_shown(console: Driver, topic: str) -> None:
    producer = Producer({"bootstrap.servers": console.bootstrap, "transactional.id": "payments"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("settings", b"undecided")
    assert producer.flush(60) == 0
    (row,) = console.get("/transactions?q=payments")["rows"]
    assert (row["transactional_id"], row["is_open"], row["hangs"]) == ("payments", True, False)
    assert row["partitions"] == ["settings/0"]
    producer.abort_transaction(60)
    assert console.get("/transactions?q=payments")["rows"][0]["is_open"] is False


def test_jobs_are_asked_for(console: Driver, topic: str) -> None:
    refused = console.act("POST", "/jobs", {"compact": "orders"})
    assert refused.status == 502
    assert "cleanup.policy" in refused.told["help"]


def test_the_bill_adds_up(console: Driver, topic: str) -> None:
    told = console.get("/cost")
    assert told["price"] == "s3-standard"
    assert told["is_other_price"] is True  # the store of this test is free
    assert told["month_usd"] == pytest.approx(sum(each["usd_month"] for each in told["kinds"]))
    assert told["budget_usd_month"] == 65
    assert told["stored_bytes"] == sum(row["stored_bytes"] for row in told["rows"])
    storage = next(each["usd_month"] for each in told["kinds"] if each["kind"] == "storage")
    assert storage == pytest.approx(sum(row["storage_usd"] for row in told["rows"]))
    assert [each["way"] for each in told["beside"]][1:] == ["one upload stream per shard", "Kafka, three replicas"]
    assert console.get("/cost?price=s3-express")["price"] == "s3-express"


def test_uploads_have_a_strand_for_each_shard(console: Driver) -> None:
    (row,) = console.get("/uploads")["rows"]
    assert (row["shard"], row["group"], row["zone"]) == (0, 0, "a")


def test_figures_stream_while_somebody_looks(console: Driver) -> None:
    with socket.create_connection((console.address.host, console.address.port), 90) as stream:
        stream.sendall(f"GET /live HTTP/1.1\r\nHost: {console.address}\r\n\r\n".encode())
        seen = b""
        while b'"knot"' not in seen:
            seen += stream.recv(1 << 16)
    event = next(line for line in seen.split(b"\n") if line.startswith(b"data: ") and b'"knot"' in line)
    assert json.loads(event[6:])["load"]["known"] is True


def test_actions_need_the_key_and_the_own_page(console: Driver, topic: str) -> None:
    body = {"topic": "stolen", "partitions": 1}
    assert console.act("POST", "/topics", body, origin="https://evil.example").status == 403
    assert console.act("POST", "/topics", body, sec_fetch_site="cross-site").status == 403
    assert console.act("POST", "/topics", body, x_braidlog_key="guess").status == 403
    assert console.act("POST", "/topics", body, content_type="text/plain").status == 415
    assert console.ask("GET", "/topics", headers={"host": "evil.example", "accept": "*/*"}).status == 403
    assert "stolen" not in [row["topic"] for row in console.get("/topics")["rows"]]


@pytest.mark.parametrize("path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/static/no.js"])
def test_only_the_consoles_own_files_are_served(console: Driver, path: str) -> None:
    assert console.ask("GET", path).status == 404


def test_scripts_are_served_as_scripts(console: Driver) -> None:
    for name, kind in (
        ("console.js", "text/javascript"),
        ("console.css", "text/css"),
        ("vendor/NOTICE.md", "text/plain"),
    ):
        answer = console.ask("GET", f"/static/{name}")
        assert answer.status == 200
        assert answer.headers["content-type"].startswith(kind)
