#!/bin/sh
# Record series for backtest.py from a running `dsf demo`: record.sh [URL [SECONDS]] > mine.json
# URL is that of a Prometheus of the demo; the last SECONDS are recorded in steps of 5 seconds.
set -eu
url=${1:-http://127.0.0.1:9090}
seconds=${2:-1650}
end=$(date +%s)

# one KIND EXPRESSION: its series with the labels node, device and kind
one() {
    printf 'label_replace(sum by (node, device) (%s), "kind", "%s", "", "")' "$2" "$1"
}
# whole KIND EXPRESSION: the same for what has no device of its own
whole() {
    one "$1" "label_replace($2, \"device\", \"$1\", \"\", \"\")"
}

busy='label_replace(rate(node_cpu_seconds_total{mode!~"idle|iowait"}[10s]), "device", "cpu$1", "cpu", "(.*)")'
query="$(one cpu "$busy")
or $(whole memory 'node_memory_MemAvailable_bytes / 2^30')
or $(whole load 'node_load1')
or $(whole switches 'rate(node_context_switches_total[10s])')
or $(whole forks 'rate(node_forks_total[10s])')"

curl --fail --silent --show-error --get "$url/api/v1/query_range" --data-urlencode "query=$query" \
    --data "start=$((end - seconds))" --data "end=$end" --data step=5
