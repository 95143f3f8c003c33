"""Outputs in object stores, published by conditional writes of a manifest."""
