"""Read and set a group's committed offsets."""
