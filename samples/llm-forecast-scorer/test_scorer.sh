#!/bin/sh
# Ask a running llm-forecast-scorer: test_scorer.sh [URL]
# The language model must answer too. If the scorer wants a token, put it into API_TOKEN.
set -eu
url=${1:-http://127.0.0.1:8000}

get() { echo "GET $1"; curl --fail --silent --show-error "$url$1"; echo; }

get /healthz
get /config
echo "POST /scoring"
# The header is read from standard input, so that no list of processes shows the token.
printf 'Authorization: Bearer %s\n' "${API_TOKEN:-none}" |
    curl --fail --silent --show-error --header @- --header 'Content-Type: application/json' "$url/scoring" --data '{
  "data": [
    {"metric": {"node": "node1", "namespace": "shop", "pod": "web"},
     "values": [[1718600000, "5"], [1718600060, "12"], [1718600120, "10"], [1718600180, "4"], [1718600240, "13"]]}
  ]
}'
echo
