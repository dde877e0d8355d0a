"""The viewer: a small server on this machine, and the page that it serves."""


def asset(name: str) -> str:
    """The text of a file of the page, as it was built from page/."""
    from importlib.resources import files  # only here, because lw.view imports this package

    return files("leafwise.web").joinpath("page", name).read_text("utf-8")
