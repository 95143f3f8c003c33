"""Airflow's connections, by its environment variables."""

from __future__ import annotations

import json
from typing import Any

import pytest

CANARY = "canary-s3cret"


def connect(monkeypatch: pytest.MonkeyPatch, conn_id: str, **fields: Any) -> None:
    """Make a connection, by default of type ``aws``."""
    text = json.dumps({"conn_type": "aws", **fields})
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", text)
