#!/usr/bin/env bash
# Kafka's own Java client and command-line tools against a broker.
#   tests/kafka/scripts/java.sh 127.0.0.1:9092
# Takes them from Maven Central into a folder of its own. Exits 0 with "SKIPPED: …" where Java, Maven or the repository
# is not to be had, so that whoever runs it can tell that from success.
set -euo pipefail

address=${1:?usage: java.sh HOST:PORT}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=${BRAIDLOG_KAFKA_VERSION:-4.2.0}
folder=$("$here/../kafka_jars.sh") || {
    echo "$folder"
    exit 0
}

run() { timeout 300 java -Xmx256m -XX:TieredStopAtLevel=1 -cp "$folder/*" "$@"; }

run "$here/JavaClient.java" "$address"

topic="tools-$$-$RANDOM"
tools=org.apache.kafka.tools
run $tools.TopicCommand --bootstrap-server "$address" --create --topic "$topic" --partitions 3 --replication-factor 1
run $tools.TopicCommand --bootstrap-server "$address" --describe --topic "$topic" | grep -q "PartitionCount: 3"
seq 1 100 | run $tools.ConsoleProducer --bootstrap-server "$address" --topic "$topic"
count=$(run $tools.consumer.ConsoleConsumer --bootstrap-server "$address" --topic "$topic" --from-beginning \
    --max-messages 100 --timeout-ms 60000 --consumer-property "group.id=$topic" 2>/dev/null | grep -E '^[0-9]+$' | sort -n | uniq | wc -l)
[ "$count" = 100 ] || { echo "the console consumer read $count of 100 records"; exit 1; }
run $tools.GetOffsetShell --bootstrap-server "$address" --topic "$topic" | awk -F: '{n += $3} END {exit n != 100}'
run $tools.consumer.group.ConsumerGroupCommand --bootstrap-server "$address" --describe --group "$topic" >/dev/null
run $tools.consumer.group.ConsumerGroupCommand --bootstrap-server "$address" --list | grep -q "^$topic$"
run kafka.admin.ConfigCommand --bootstrap-server "$address" --alter --entity-type topics --entity-name "$topic" \
    --add-config retention.ms=3600000 >/dev/null
run kafka.admin.ConfigCommand --bootstrap-server "$address" --describe --entity-type topics --entity-name "$topic" |
    grep -q "retention.ms=3600000"
run $tools.LogDirsCommand --bootstrap-server "$address" --describe --topic-list "$topic" | grep -q "\"$topic-0\"\|$topic-0"
run $tools.BrokerApiVersionsCommand --bootstrap-server "$address" | grep -q "Produce(0)"
run $tools.FeatureCommand --bootstrap-server "$address" describe | grep -q "group.version"
run $tools.FeatureCommand --bootstrap-server "$address" upgrade --feature group.version=1 >/dev/null
run $tools.MetadataQuorumCommand --bootstrap-server "$address" describe --status | grep -q "LeaderId:"
run $tools.TransactionsCommand --bootstrap-server "$address" list >/dev/null
broker=$(run $tools.TopicCommand --bootstrap-server "$address" --describe --topic "$topic" | grep -o "Leader: [0-9]*" | head -n 1 | grep -o "[0-9]*")
move=$(mktemp)
echo "{\"version\":1,\"partitions\":[{\"topic\":\"$topic\",\"partition\":2,\"replicas\":[$broker],\"log_dirs\":[\"any\"]}]}" >"$move"
run $tools.reassign.ReassignPartitionsCommand --bootstrap-server "$address" --execute --reassignment-json-file "$move" >/dev/null
run $tools.reassign.ReassignPartitionsCommand --bootstrap-server "$address" --verify --reassignment-json-file "$move" |
    grep -q "Reassignment of partition $topic-2 is completed"
rm "$move"
run $tools.TopicCommand --bootstrap-server "$address" --describe --topic __consumer_offsets | grep -q "PartitionCount"
run $tools.consumer.group.ConsumerGroupCommand --bootstrap-server "$address" --delete --group "$topic" >/dev/null
run $tools.TopicCommand --bootstrap-server "$address" --delete --topic "$topic"
echo "OK: Kafka's own tools $version"
