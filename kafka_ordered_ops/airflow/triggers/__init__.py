"""What runs in Airflow's triggerer: the sensor's wait, and the watcher of reached cutoffs."""
