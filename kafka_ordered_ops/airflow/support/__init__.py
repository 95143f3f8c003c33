"""What operators, sensors and triggers share."""
