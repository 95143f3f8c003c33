"""The contents of a root, its owner, and its repair after crashes."""
