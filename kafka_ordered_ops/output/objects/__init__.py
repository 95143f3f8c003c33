"""Outputs in object stores, published by a manifest that moves by conditional writes."""
