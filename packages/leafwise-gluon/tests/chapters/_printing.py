"""What the chapters print with. Runs on both versions of MXNet and on leafwise."""


def heading(text):
    print()
    print("#", text)


def rounded(array, digits=4):
    """The values of an array in one list, as text, without the sign of zeros."""
    return [f"{round(float(value), digits) + 0.0:.{digits}f}" for value in array.asnumpy().ravel()]


def error(call):
    """Prints what a call returns, or the type and the first line of its error."""
    try:
        print(call())
    except Exception as problem:
        print(type(problem).__name__, str(problem).split("\n")[0][:75])
