"""What Dagster shows of a delivered window."""
