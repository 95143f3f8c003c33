"""Write a window's records into a stage."""
