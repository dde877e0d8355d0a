"""The standard error of commands, without the parts that depend on how leafwise was installed."""


def said(stderr: str) -> str:
    """Removes the line that leafwise writes if it was installed without a C compiler."""
    return "".join(line for line in stderr.splitlines(True) if "installed without a C compiler" not in line)
