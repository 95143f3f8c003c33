"""Jobs whose driver may go on without its submitter."""

from __future__ import annotations

from typing import Final

from kafka_ordered_ops.spec.deploy_mode import MASTER_KEY, DeployMode
from kafka_ordered_ops.spec.jobs import Application, Job

#: The longest run of such a driver: the files of an older one are removed.
DETACHED_S_MAX: Final = 30 * 24 * 3600.0


def not_detachable(job: Job) -> str | None:
    """Return why a job's driver cannot go on without its submitter; None for one that can."""
    if not isinstance(job, Application):
        return "the job runs in the worker itself: only an Application can go on without it"
    how = job.how
    if how.deploy_mode is not DeployMode.CLUSTER:
        return (
            "in client mode, the driver is a child of the worker and ends with it: use submit={'master': 'yarn', "
            "'deploy_mode': 'cluster'}"
        )
    if (master := how.master or how.conf.get(MASTER_KEY)) != "yarn":
        return (
            f"the master is {master!r}, and drivers are found again on YARN only: elsewhere, put a deferrable operator of "
            "the cluster between PlanWindowOperator and CommitWindowOperator"
        )
    if how.timeout_s > DETACHED_S_MAX:
        return f"timeout_s is {how.timeout_s:g}: give at most {DETACHED_S_MAX:g}"
    return None
