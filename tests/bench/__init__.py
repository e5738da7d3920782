"""Measures what the library costs: `python -m tests.bench`."""
