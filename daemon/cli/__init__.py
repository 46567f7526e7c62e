"""The command line. Commands import what is heavy when they run, so that help is there at once."""


def main() -> None:
    """The `isotherm` command."""
    from .app import app

    app()
