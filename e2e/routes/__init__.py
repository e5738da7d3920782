"""Routes to the driver inside other systems."""
