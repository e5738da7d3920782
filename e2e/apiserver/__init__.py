"""The webhook behind a real API server: cases, certificates, replicas, rolling restarts."""
