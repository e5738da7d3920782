"""The chart as far as Python alone can judge it: values, their schema, their table, the Dockerfiles."""
