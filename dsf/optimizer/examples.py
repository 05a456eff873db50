"""An answer as the OpenAPI document shows it."""

from __future__ import annotations

from typing import Any, Final

_YAML: Final = """---
apiVersion: cluster.open-cluster-management.io/v1beta1
kind: Placement
metadata:
  name: placement-cluster1-a140791d
  namespace: default
  labels:
    dynamic-scoring-framework-mcp/generated: 'true'
    app.kubernetes.io/managed-by: dynamic-scoring-framework
spec:
  numberOfClusters: 1
  predicates:
  - requiredClusterSelector:
      labelSelector:
        matchExpressions:
        - key: cluster-name
          operator: In
          values:
          - cluster1
"""

PLAN_REPORT: Final[dict[str, Any]] = {
    "status": "Optimal",
    "objective_value": 60.0,
    "output_yaml": _YAML,
    "plan": {
        "assignments": [
            {
                "workload": "mwrs-app01",
                "cluster": "cluster1",
                "policy": "policy-enable-mig-3g-cluster1",
                "device": "3g.48gb",
                "score": 60.0,
                "replicas": 1,
                "kept": 0,
            }
        ],
        "configurations": [
            {
                "cluster": "cluster1",
                "policy": "policy-enable-mig-3g-cluster1",
                "device": "3g.48gb",
                "supply": {"gpu": 2},
                "used": {"gpu": 2},
            }
        ],
    },
    "unplaced": [
        {
            "workload": "mwrs-app02",
            "replicas": 1,
            "reason": "capacity",
            "message": "best option left is cluster1 with 3g.48gb (55): gpu of cluster1 (2) is taken by mwrs-app01; "
            "2 needed",
        }
    ],
    "gap": 0.0,
    "bound": 60.0,
    "explanation": [
        {
            "workload": "mwrs-app01",
            "chosen": [{"cluster": "cluster1", "device": "3g.48gb", "score": 60.0}],
            "next_best": {"cluster": "cluster1", "device": "all", "score": 80.0},
            "reason": "too_large",
            "message": "supplies 1 of gpu; 2 needed",
            "options_without_score": 0,
            "options_with_expired_score": 0,
        }
    ],
    "missing_scores": [],
    "warnings": [],
    "plan_id": "5f2c1d0e9b8a7c6d",
    "namespace": "default",
    "applied": False,
    "changes": [
        {
            "kind": "Placement",
            "namespace": "default",
            "name": "placement-cluster1-a140791d",
            "change": "created",
        }
    ],
    "seconds": 0.012,
}
