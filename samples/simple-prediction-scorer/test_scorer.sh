#!/bin/sh
# Ask a running simple-prediction-scorer: test_scorer.sh [URL]
# A pod whose load rises to 2 cores, one that rests, and one that has only begun, which gets no score.
set -eu
url=${1:-http://127.0.0.1:8000}

get() { echo "GET $1"; curl --fail --silent --show-error "$url$1"; echo; }

# samples COUNT EXPRESSION: [time,"value"],... of an awk expression of n
samples() {
    awk "BEGIN { for (n = 0; n < $1; n++) printf \"%s[%d,\\\"%.4f\\\"]\", n ? \",\" : \"\", 1718600000 + 30 * n, $2 }"
}
series() { printf '{"metric":{"node":"node1","namespace":"%s","pod":"%s"},"values":[%s]}' "$1" "$2" "$(samples "$3" "$4")"; }

get /healthz
get /config
echo "POST /scoring"
printf '{"data":[%s,%s,%s]}' \
    "$(series shop web 60 '2 * n / 60')" \
    "$(series tools idle 60 '0.05 + 0.01 * sin(n)')" \
    "$(series shop new 5 '1')" |
    curl --fail --silent --show-error --header 'Content-Type: application/json' "$url/scoring" --data-binary @-
echo
