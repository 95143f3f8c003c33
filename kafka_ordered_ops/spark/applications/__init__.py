"""Applications run by spark-submit."""
