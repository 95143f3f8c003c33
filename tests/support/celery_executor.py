"""The executor of the Celery provider, as `airflow standalone` lets it be: it changes any that is not a local one."""

from __future__ import annotations

from airflow.providers.celery.executors.celery_executor import CeleryExecutor


class StandaloneCeleryExecutor(CeleryExecutor):  # type: ignore[misc]
    """Sends tasks to Celery's workers, whatever it says of itself."""

    is_local = True
