"""Outputs in HDFS, by its own protocol and without Java. `door` is the one door to hdfs-native."""
