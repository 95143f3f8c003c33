"""The address of a Spark job's page, for the links of hosts."""

from __future__ import annotations

from typing import Any


def job_page(spark: Any) -> str | None:
    """Return the address of a session's page in a browser; None where it has none.

    The history server's page stays after the job; the others are there while the session runs. A session of
    Spark Connect shows nothing of itself, and no page is a reason to fail.
    """
    try:
        context = spark.sparkContext
        conf, application = context.getConf(), str(context.applicationId)
        history = str(conf.get("spark.yarn.historyServer.address") or "")
        proxy = str(conf.get("spark.ui.reverseProxyUrl") or "")
        # A variable of Hadoop's configuration, which only YARN puts in.
        if history and "${" not in history:
            base = history if "://" in history else f"http://{history}"
            return f"{base.rstrip('/')}/history/{application}/"
        if proxy:
            return f"{proxy.rstrip('/')}/proxy/{application}/"
        return context.uiWebUrl or None
    except Exception:  # noqa: BLE001 - as above
        return None
