"""Whole chains: onebox (one machine, no cluster), cluster (a real kubelet)."""
