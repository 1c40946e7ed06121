#!/usr/bin/env bash
# Spark's own Kafka connector against a broker: a batch and a stream, both ways.
#   PYTHON=.venv/bin/python tests/kafka/scripts/spark_kafka.sh 127.0.0.1:9092
# Takes the connector from Maven Central into a folder of its own. Exits 0 with "SKIPPED: …" where Java, Maven, PySpark or
# the connector is not to be had, so that whoever runs it can tell that from success.
set -euo pipefail

address=${1:?usage: spark_kafka.sh HOST:PORT}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}

for tool in java mvn; do
    if ! command -v "$tool" >/dev/null; then
        echo "SKIPPED: $tool is not installed"
        exit 0
    fi
done
if ! installed=$("$python" -c 'import pyspark; print(pyspark.__version__)' 2>/dev/null); then
    echo "SKIPPED: $python has no PySpark"
    exit 0
fi

folder=${BRAIDLOG_SPARK_KAFKA_JARS:-${TMPDIR:-/tmp}/braidlog-spark-kafka-$installed}
mkdir -p "$folder"
fetch() { # GROUP NAME VERSION…: the first version that is to be had
    local group=$1 name=$2 number
    ls "$folder/$name"-*.jar >/dev/null 2>&1 && return
    for number in "${@:3}"; do
        if timeout 300 mvn -q -B dependency:copy -Dartifact="$group:$name:$number" -DoutputDirectory="$folder" >"$folder/mvn.log" 2>&1; then
            return
        fi
    done
    echo "SKIPPED: $name could not be fetched: $(grep -m 1 ERROR "$folder/mvn.log" || tail -n 1 "$folder/mvn.log")"
    exit 0
}
# The connector of a release may come out after it, and earlier ones work with it.
before="${installed%%.*}.$(($(cut -d. -f2 <<<"$installed") - 1)).0"
versions=("$installed" "$before" "${installed%%.*}.0.0")
fetch org.apache.spark spark-sql-kafka-0-10_2.13 "${versions[@]}"
fetch org.apache.spark spark-token-provider-kafka-0-10_2.13 "${versions[@]}"
fetch org.apache.kafka kafka-clients 3.9.1
fetch org.apache.commons commons-pool2 2.12.1

timeout 600 "$python" "$here/spark_kafka.py" "$address" "$folder"
