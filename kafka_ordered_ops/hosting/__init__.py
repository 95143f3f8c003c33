"""What Airflow, Dagster and the command line share."""
