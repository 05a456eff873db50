#!/bin/sh
# Ask a running resource-usage-scorer: test_scorer.sh [URL]
set -eu
url=${1:-http://127.0.0.1:8000}

get() { echo "GET $1"; curl --fail --silent --show-error "$url$1"; echo; }

get /healthz
get /config
echo "POST /scoring"
# A cluster with 48 cores and 256 GiB left, of which node1 has 30 cores and 64 GiB.
curl --fail --silent --show-error --header 'Content-Type: application/json' "$url/scoring" --data '{
  "data": [
    {"metric": {"resource": "cpu"}, "values": [[1718600000, "48"]]},
    {"metric": {"resource": "cpu", "node": "node1"}, "values": [[1718600000, "30"]]},
    {"metric": {"resource": "memory"}, "values": [[1718600000, "274877906944"]]},
    {"metric": {"resource": "memory", "node": "node1"}, "values": [[1718600000, "68719476736"]]}
  ]
}'
echo
