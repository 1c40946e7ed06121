#!/usr/bin/env bash
# Takes Apache Kafka's server, clients and tools from Maven Central, once, and prints the folder that holds their jars.
# Exits 1 with "SKIPPED: …" where Java, Maven or the repository is missing.
set -euo pipefail

version=${BRAIDLOG_KAFKA_VERSION:-4.2.0}
folder=${BRAIDLOG_KAFKA_JARS:-${TMPDIR:-/tmp}/braidlog-kafka-server-$version}

for tool in java mvn; do
    if ! command -v "$tool" >/dev/null; then
        echo "SKIPPED: $tool is not installed"
        exit 1
    fi
done
if ! [ -e "$folder/complete" ]; then
    mkdir -p "$folder"
    cat >"$folder/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$version</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>$version</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-core</artifactId><version>2.25.1</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.25.1</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-1.2-api</artifactId><version>2.25.1</version></dependency>
  </dependencies>
</project>
POM
    if ! timeout 300 mvn -q -B -f "$folder/pom.xml" dependency:copy-dependencies \
        -DoutputDirectory="$folder" >"$folder/mvn.log" 2>&1; then
        echo "SKIPPED: Kafka $version could not be fetched: $(grep -m 1 ERROR "$folder/mvn.log" || tail -n 1 "$folder/mvn.log")"
        exit 1
    fi
    touch "$folder/complete"
fi
echo "$folder"
