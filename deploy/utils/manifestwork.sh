#!/bin/sh
# Prints a ManifestWork that brings the objects of some YAML files to a managed cluster:
#   deploy/utils/manifestwork.sh NAME CLUSTER FILE... | kubectl --context kind-hub apply -f -
set -eu
if [ $# -lt 3 ]; then
    echo "usage: $0 NAME CLUSTER FILE..." >&2
    exit 2
fi
name=$1 cluster=$2
shift 2
for file; do
    [ -r "$file" ] || { echo "$0: cannot read $file" >&2; exit 1; }
done
cat <<EOF
apiVersion: work.open-cluster-management.io/v1
kind: ManifestWork
metadata:
  name: $name
  namespace: $cluster
spec:
  workload:
    manifests:
EOF
# Each document is one item: its first line gets the dash, the others are indented as much. Comments stay behind.
awk '
    FNR == 1 || /^---/ { mark = "      - " }
    /^---/ || /^#/ { next }
    mark == "      - " && /^[[:space:]]*$/ { next }
    { print mark $0; mark = "        " }
' "$@"
