"""Limits on what the author of a scorer may see of servers' answers.

A scorer names servers that the hub and the agents request. Its author may be unable to reach them: without this rule
its status would show the beginning of any internal page. Therefore statuses of scorers in other namespaces than the
hub's own have only status and kind of a failure; the hub's operators see the answers in `dsf history` and on the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from dsf.api.scorer import FailedCycle
from dsf.api.summary import ScorerSummary
from dsf.api.tokenhosts import TokenHosts
from dsf.api.urls import base_url

#: At the end of a message without the answer.
NOT_SHOWN: Final = "what it answered is shown only to scorers in the hub's own namespace"

_STATUS: Final = re.compile(r"\bstatus ([1-5][0-9]{2})\b")


def server_refusal(allowed: TokenHosts, urls: Iterable[str]) -> str:
    """Why a scorer of another namespace may not name one of these servers; empty if it may. Without a list any may."""
    if not allowed:
        return ""
    for url in urls:
        if not allowed.allow(url):
            return (
                f"scorers outside of the hub's own namespace may not name {_server(url)}: have the hub's admin add it "
                "to DSF_SCORER_HOSTS (the chart's hubSetting.scorerHosts)"
            )
    return ""


def servers_of(summary: ScorerSummary) -> list[str]:
    """URLs of all servers that agents request for a scorer; of token servers, those that its author named."""
    urls = [summary.scoring_endpoint, *(source.source_endpoint for source in summary.each_source)]
    for access in summary.accesses:
        urls += [access.proxy_url or "", *access.methods.named_servers]
    return [url for url in urls if url]


def _server(url: str) -> str:
    try:
        return base_url(url)
    except ValueError:
        return "this server"


def kind_of(reason: str, status: int | None) -> str:
    """A failure by its kind alone: its reason in words, and the status of the answer if there was one."""
    words = reason.replace("_", " ")
    return f"{words}, status {status}" if status else words


def without_answers(failures: Iterable[FailedCycle]) -> list[FailedCycle]:
    """The failures of cycles without the servers' texts, which agents put into messages."""
    return [
        failure.model_copy(update={"message": kind_of(failure.reason, _status(failure.message))})
        for failure in failures
    ]


def _status(message: str) -> int | None:
    match = _STATUS.search(message)
    return int(match[1]) if match else None
