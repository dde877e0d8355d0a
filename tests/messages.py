"""What commands write to standard error, without what depends on how leafwise was installed."""


def said(stderr: str) -> str:
    """Without the line that a leafwise writes that was installed without a C compiler."""
    return "".join(line for line in stderr.splitlines(True) if "installed without a C compiler" not in line)
