"""What must be in the environment before the first test is imported; the commands that tests run inherit it."""

import os

# Triton's kernels are run by its interpreter, which it must know before it is first imported.
os.environ.setdefault("TRITON_INTERPRET", "1")
# Commands write UTF-8 whatever the locale, as the tests that read them expect; a test of another encoding sets it.
os.environ["PYTHONIOENCODING"] = "utf-8"
