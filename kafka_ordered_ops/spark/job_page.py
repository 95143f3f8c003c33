"""The URL of a Spark job's page, for links in hosts."""

from __future__ import annotations

from typing import Any


def job_page(spark: Any) -> str | None:
    """Return the URL of a session's page; None if it has none.

    The history server's page stays after the job; the others exist while the session runs. A session of Spark Connect
    has no page. A failure to find a page is never raised.
    """
    try:
        context = spark.sparkContext
        conf, application = context.getConf(), str(context.applicationId)
        history = str(conf.get("spark.yarn.historyServer.address") or "")
        proxy = str(conf.get("spark.ui.reverseProxyUrl") or "")
        # It contains a variable of Hadoop's configuration, which only YARN substitutes.
        if history and "${" not in history:
            base = history if "://" in history else f"http://{history}"
            return f"{base.rstrip('/')}/history/{application}/"
        if proxy:
            return f"{proxy.rstrip('/')}/proxy/{application}/"
        return context.uiWebUrl or None
    except Exception:  # noqa: BLE001 - as above
        return None
