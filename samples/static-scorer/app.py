"""A scoring API without a source: fixed scores from two tables, one path for each.

Such a scorer is of use when what is known does not change with the minute: which device suits which application, what
a device costs. One service may offer several scores; each is registered as a DynamicScorer of its own.
Start it with `uvicorn app:app --port 8000`.
"""

from __future__ import annotations

import os
from typing import Any

from fastapi import FastAPI, HTTPException

#: table -> (application, device) -> score. Higher is better.
TABLES: dict[str, dict[tuple[str, str], float]] = {
    "performance": {
        ("app01", "all"): 80.0,
        ("app02", "all"): 80.0,
        ("app01", "3g.48gb"): 60.0,
        ("app02", "3g.48gb"): 55.0,
        ("app01", "2g.24gb"): 10.0,
        ("app02", "2g.24gb"): 15.0,
    },
    "powerconsumption": {
        ("app01", "all"): 20.0,
        ("app02", "all"): 10.0,
        ("app01", "3g.48gb"): 30.0,
        ("app02", "3g.48gb"): 55.0,
        ("app01", "2g.24gb"): 80.0,
        ("app02", "2g.24gb"): 90.0,
    },
}
DESCRIPTIONS = {
    "performance": "An example performance score",
    "powerconsumption": "An example power consumption score",
}

app = FastAPI(title="static-scorer")


@app.get("/healthz")
def healthz() -> dict[str, str]:
    """One health check serves both scorers: it is asked at the root of the host."""
    return {"status": "ok"}


@app.get("/{name}/config")
def config(name: str) -> dict[str, Any]:
    """No source: the framework posts an empty list of series."""
    table(name)
    return {
        "name": f"example-{name}-scorer",
        "description": DESCRIPTIONS[name],
        "source": {"type": "None"},
        "scoring": {
            "path": f"/{name}/scoring",
            "params": {
                "name": f"example_{name}_score",
                "interval": int(os.environ.get("SCORE_INTERVAL", "30")),
            },
        },
    }


@app.post("/{name}/scoring")
def scoring(name: str) -> dict[str, list[dict[str, Any]]]:
    """The whole table, whatever was posted."""
    return {
        "results": [
            {"metric": {"app": application, "device": device}, "score": score}
            for (application, device), score in table(name).items()
        ]
    }


def table(name: str) -> dict[tuple[str, str], float]:
    """The table of this name; 404 when there is none."""
    if name not in TABLES:
        raise HTTPException(404, f"no table {name}; there are {', '.join(TABLES)}")
    return TABLES[name]
