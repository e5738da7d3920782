"""What the real clients run: each program speaks with the test over a pipe (dialogue.py).

They run in the client's own environment, where the project's packages aren't; so they import nothing of it.
"""
