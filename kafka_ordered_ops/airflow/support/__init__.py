"""Code shared by operators, sensors and triggers."""
