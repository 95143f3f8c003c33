"""Done ranges beyond a committed offset, as text in the commit's metadata."""
