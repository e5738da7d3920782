"""`python -m webhook`: reads the settings and serves until SIGTERM."""

import sys

from webhook import config, log


def main(arguments: list[str]) -> int:
    """Serve. Returns 2 for a wrong setting, with one line that says which."""
    try:
        settings = config.load(arguments)
        log.configure(settings.server.log_level)
        # Late: the settings' errors and --help need none of the server.
        from webhook.server import serve  # noqa: PLC0415

        serve(settings)
    except config.SettingsError as error:
        print(f"webhook: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
