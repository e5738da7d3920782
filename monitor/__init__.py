"""Per-node exporter: what was promised, what is enforced and what is really used, for each container."""
