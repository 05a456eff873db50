#!/bin/sh
# Ask a running ai-workload-scorer: test_scorer.sh [URL]
set -eu
url=${1:-http://127.0.0.1:8000}

get() { echo "GET $1"; curl --fail --silent --show-error "$url$1"; echo; }
post() {
    echo "POST $1"
    curl --fail --silent --show-error --header 'Content-Type: application/json' "$url$1" --data "$2"
    echo
}

get /healthz
get /power/config
# The second series is of no pod and counts for nothing.
post /power/scoring '{
  "data": [
    {"metric": {"Hostname": "node1", "exported_pod": "app01-0", "GPU_I_PROFILE": "2g.24gb"},
     "values": [[1718600000, "80"], [1718600060, "84"], [1718600120, "82"]]},
    {"metric": {"Hostname": "node2"}, "values": [[1718600000, "40"]]}
  ]
}'
get /performance/config
post /performance/scoring '{"data": [{"metric": {"pod": "app01-0"}, "values": [[1718600000, "120"]]}]}'
