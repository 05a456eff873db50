#!/bin/sh
# Links the Skupper sites (version 2) of several managed clusters to that of the hub:
#   deploy/skupper/link.sh HUB_CONTEXT CONTEXT...      for example: link.sh kind-hub kind-cluster1 kind-cluster2
# Skupper's controller must run on each cluster, and the chart with redis.exposure.type SkupperV2 on the hub. It may be
# run again: with more clusters, or when a link was lost. LINK_ACCESS (default) may be nodeport, for kind.
set -eu
if [ $# -lt 2 ]; then
    echo "usage: $0 HUB_CONTEXT CONTEXT..." >&2
    exit 2
fi
command -v kubectl >/dev/null || { echo "$0: kubectl is not on PATH" >&2; exit 1; }
folder=$(dirname "$0")/v2
hub=$1
shift
on_hub() { kubectl --context "$hub" --namespace open-cluster-management "$@"; }

# A grant has a number of uses and ends after an hour: each run makes a new one.
on_hub delete accessgrant managed-clusters --ignore-not-found
sed -e "s/linkAccess: .*/linkAccess: ${LINK_ACCESS:-default}/" -e "s/redemptionsAllowed: .*/redemptionsAllowed: $#/" \
    "$folder/hub.yaml" | on_hub apply --filename -
on_hub wait --for=condition=Ready accessgrant/managed-clusters --timeout=180s
grant() { on_hub get accessgrant managed-clusters --output "jsonpath={.status.$1}"; }
URL=$(grant url) CODE=$(grant code) CA=$(grant ca)
export URL CODE CA

for context; do
    site=${context#kind-}
    # A used token is not redeemed again.
    kubectl --context "$context" --namespace dynamic-scoring delete accesstoken hub --ignore-not-found
    # Not with gsub, to which an & in a code is a command.
    SITE=$site awk '
        function put(mark, value, place) {
            place = index($0, mark)
            if (place) $0 = substr($0, 1, place - 1) value substr($0, place + length(mark))
        }
        /REPLACE-WITH-CA/ {
            print "  ca: |"
            count = split(ENVIRON["CA"], lines, "\n")
            for (i = 1; i <= count; i++) print "    " lines[i]
            next
        }
        { put("https://REPLACE-WITH-URL", ENVIRON["URL"]); put("REPLACE-WITH-CODE", ENVIRON["CODE"]) }
        { sub("name: worker01$", "name: " ENVIRON["SITE"]); print }
    ' "$folder/managed-cluster.yaml" | kubectl --context "$context" apply --filename -
done
for context; do
    kubectl --context "$context" --namespace dynamic-scoring wait --for=condition=Redeemed accesstoken/hub --timeout=180s
done
