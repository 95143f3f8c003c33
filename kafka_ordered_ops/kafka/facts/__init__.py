"""What a plan and a look at liveness need to know of the logs."""
