"""Mutating admission webhook: gives the pods that ask for a share of a GPU the library that enforces it."""
