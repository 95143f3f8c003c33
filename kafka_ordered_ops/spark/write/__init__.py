"""DataFrames as windows: files and tables."""
