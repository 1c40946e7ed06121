"""Real processes that share a secret, and one that does not have it."""

from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from tests.cluster import WAIT_S_MAX, Cluster

from braidlog.cli.tools.certificates import write_certificate

SECRET_FILE = "BRAIDLOG_CLUSTER_SECRET_FILE"


@pytest.mark.slow
def test_agents_of_two_shards_serve_tls_and_prove_the_cluster_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent without the secret cannot join. Each shard has its own port on the listener with TLS too."""
    secret = tmp_path / "secret"
    secret.write_text("a secret of the whole cluster\n")
    made = write_certificate(tmp_path / "certs", ["127.0.0.1"])
    tls = {
        "security_protocol": "SSL",
        "ssl_certificate_file": str(made["certificate"]),
        "ssl_key_file": str(made["key"]),
    }
    with Cluster(tmp_path / "cluster") as cluster:
        monkeypatch.setenv(SECRET_FILE, str(secret))
        control = cluster.control()
        agent = cluster.agent(control=control, shards=2, **tls)
        config = {
            "bootstrap.servers": agent.address,
            "security.protocol": "SSL",
            "ssl.ca.location": str(made["ca"]),
            "log_level": 0,
        }
        ports = {broker.port for broker in AdminClient(config).list_topics(timeout=WAIT_S_MAX).brokers.values()}
        assert ports == {agent.port, agent.port + 1}
        told: list[object] = []
        producer = Producer(config)
        producer.produce("events", b"v", on_delivery=lambda error, _: told.append(error))
        assert producer.flush(WAIT_S_MAX) == 0
        assert told == [None]
        monkeypatch.delenv(SECRET_FILE)
        with pytest.raises(RuntimeError, match="ended with"):
            cluster.agent("stranger", control=control)
        assert "does not know the cluster's secret" in control.log_tail()
