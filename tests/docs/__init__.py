"""What the documents say about commands and files."""
