"""Runs the tests of a CI build on all its nodes, from one queue on a Tenure server."""

__version__ = "0.1.0"
