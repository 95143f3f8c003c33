"""One job and one window object, for `OrderedWindows.run` and for every host."""
