"""Write a window's records to a stage."""
