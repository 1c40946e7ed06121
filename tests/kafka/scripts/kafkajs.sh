#!/usr/bin/env bash
# kafkajs against a broker: topics, records, groups and refusals.
#   tests/kafka/scripts/kafkajs.sh 127.0.0.1:9092
# Installs kafkajs from the npm registry into a folder of its own. Exits 0 with "SKIPPED: …" where node or the registry
# is not to be had, so that whoever runs it can tell that from success.
set -euo pipefail

address=${1:?usage: kafkajs.sh HOST:PORT}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${BRAIDLOG_KAFKAJS_FOLDER:-${TMPDIR:-/tmp}/braidlog-kafkajs}

if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
    echo "SKIPPED: node and npm are not installed"
    exit 0
fi
mkdir -p "$folder"
if [ ! -d "$folder/node_modules/kafkajs" ]; then
    if ! (cd "$folder" && timeout 120 npm install --silent --no-audit --no-fund kafkajs@2 >npm.log 2>&1); then
        echo "SKIPPED: kafkajs could not be installed: $(tail -n 1 "$folder/npm.log")"
        exit 0
    fi
fi
NODE_PATH="$folder/node_modules" KAFKAJS_NO_PARTITIONER_WARNING=1 timeout 300 node "$here/kafkajs.js" "$address"
