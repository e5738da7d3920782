"""The monitor's pages, alerts and dashboard before the real Prometheus."""
