DIFFERENT: tuple[tuple[str, str], ...] = ()
