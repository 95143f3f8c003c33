"""One step: liveness, plan, job, commit."""
