#!/bin/sh
# Ask a running static-scorer: test_scorer.sh [URL]
set -eu
url=${1:-http://127.0.0.1:8000}

get() { echo "GET $1"; curl --fail --silent --show-error "$url$1"; echo; }
post() {
    echo "POST $1"
    curl --fail --silent --show-error --header 'Content-Type: application/json' "$url$1" --data '{"data": []}'
    echo
}

get /healthz
for table in performance powerconsumption; do
    get "/$table/config"
    post "/$table/scoring"
done
