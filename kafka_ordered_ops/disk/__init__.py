"""The one door to the local file system for what this package makes: no link is followed there, and owners are checked.

Below a folder `CONTROL_FOLDER`, wherever that is, all is this package's own. Each folder on the way there is opened relative to
the one above it, which is held open meanwhile: whoever puts a link or another folder in its place is too late or is refused.
"""
