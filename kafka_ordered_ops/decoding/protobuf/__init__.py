"""Values in Protobuf. The one door to the Protobuf library."""
