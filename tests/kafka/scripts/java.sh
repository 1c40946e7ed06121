#!/usr/bin/env bash
# Kafka's own Java client and command-line tools against a broker.
#   tests/kafka/scripts/java.sh 127.0.0.1:9092
# Takes them from Maven Central into a folder of its own. Exits 0 with "SKIPPED: …" where Java, Maven or the repository
# is not to be had, so that whoever runs it can tell that from success.
set -euo pipefail

address=${1:?usage: java.sh HOST:PORT}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=${BRAIDLOG_KAFKA_VERSION:-4.2.0}
folder=${BRAIDLOG_KAFKA_JARS:-${TMPDIR:-/tmp}/braidlog-kafka-$version}

for tool in java mvn; do
    if ! command -v "$tool" >/dev/null; then
        echo "SKIPPED: $tool is not installed"
        exit 0
    fi
done
if ! ls "$folder"/kafka-tools-*.jar >/dev/null 2>&1; then
    mkdir -p "$folder"
    cat >"$folder/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$version</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>$version</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
POM
    if ! timeout 300 mvn -q -B -f "$folder/pom.xml" dependency:copy-dependencies \
        -DoutputDirectory="$folder" >"$folder/mvn.log" 2>&1; then
        echo "SKIPPED: Kafka $version could not be fetched: $(grep -m 1 ERROR "$folder/mvn.log" || tail -n 1 "$folder/mvn.log")"
        exit 0
    fi
fi

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
run $tools.consumer.group.ConsumerGroupCommand --bootstrap-server "$address" --delete --group "$topic" >/dev/null
run $tools.TopicCommand --bootstrap-server "$address" --delete --topic "$topic"
echo "OK: Kafka's own tools $version"
