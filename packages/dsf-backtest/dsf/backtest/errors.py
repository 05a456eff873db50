"""Errors of backtests, in addition to those of the framework."""

from __future__ import annotations

from dsf.errors import DsfError


class BacktestError(DsfError):
    """A backtest cannot be run, read or compared as requested. The message names file, source or option."""
