"""The only access to the local file system for this package's own files: links are not followed, and owners are checked.

Everything below a folder `CONTROL_FOLDER` belongs to this package. Each folder of a path is opened relative to its parent, which
stays open meanwhile: a link or another folder that is put in its place comes too late, or is refused.
"""
