"""A real one-node Kubernetes for the tests, in namespaces of its own: what it starts goes with it, whatever fails."""
