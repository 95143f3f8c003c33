"""Outputs in HDFS, over its own protocol and without Java. Only `door` calls hdfs-native."""
