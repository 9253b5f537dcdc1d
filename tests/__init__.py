"""The tests, under this name: one of the dependencies installs a package `tests` too, which would be taken for it."""
