"""Values in Avro."""
