#!/bin/sh
# Ask a running sample-scorer: test_scorer.sh [URL]
set -eu
url=${1:-http://127.0.0.1:8000}

get() { echo "GET $1"; curl --fail --silent --show-error "$url$1"; echo; }

get /healthz
get /config
echo "POST /scoring"
curl --fail --silent --show-error --header 'Content-Type: application/json' "$url/scoring" --data '{
  "data": [
    {"metric": {"node": "node1", "pod": "web"}, "values": [[1718600000, "5"], [1718600060, "10"], [1718600120, "15"]]},
    {"metric": {"node": "node1", "pod": "idle"}, "values": []}
  ]
}'
echo
