"""What `import` gives for a name of MXNet that the front end does not have."""

from typing import Any, NoReturn, Union

from leafwise_gluon.base import MXNetError, refusal


class MissingNameError(MXNetError, AttributeError):
    """An attribute was read of something that the front end does not have."""


class Placeholder:
    """Something of MXNet that the front end does not have. It can be imported, passed on and compared, and nothing is
    an instance of it; everything else raises an error with what to do instead."""

    _path: str
    _instead: str

    def __init__(self, path: str, instead: str) -> None:
        self.__dict__["_path"], self.__dict__["_instead"] = path, instead
        self.__dict__["__name__"] = path.rpartition(".")[2]

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise refusal(self._path, self._instead)

    __call__ = __mro_entries__ = __bool__ = __iter__ = __len__ = __getitem__ = __setattr__ = __int__ = __float__ = (
        _refuse
    )
    __add__ = __radd__ = __mul__ = __rmul__ = __sub__ = __rsub__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __contains__ = __index__ = __enter__ = __exit__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # asked by Python itself, which takes a plain AttributeError for "no"
            raise AttributeError(name)
        raise MissingNameError(f"the Gluon front end does not support {self._path}; {self._instead}")

    def __instancecheck__(self, instance: Any) -> bool:
        return False

    def __subclasscheck__(self, subclass: type) -> bool:
        return False

    def __or__(self, other: Any) -> Any:  # in annotations: Symbol | None
        return Union[self, other]  # noqa: UP007

    __ror__ = __or__

    def __repr__(self) -> str:
        return f"<{self._path}, which the Gluon front end does not have>"
