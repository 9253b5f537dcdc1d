"""Adapters to environment suites, each imported when one of its environments is made."""
