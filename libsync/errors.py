"""The one error that libsync's steps raise for what a person has to put right."""


class RefusalError(Exception):
    """Nothing was changed, or nothing that pods use; the text says what is wrong and what to do."""
