"""Assets, resources and sensors, one file each."""
