"""The files of the page, as they were built from page/."""

from importlib.resources import files


def asset(name: str) -> str:
    """The text of a file of the page."""
    return files("leafwise.web").joinpath("page", name).read_text("utf-8")
