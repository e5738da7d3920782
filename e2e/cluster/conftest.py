"""The whole chain, once a session: a node, KAI's part, the images, and the chart as an operator installs it."""
