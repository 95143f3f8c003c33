"""Code that Airflow, Dagster and the command line share."""
