"""Gluon arrays as leaves of containers, handled as the underlying tensors, because arrays lack the tensor methods."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from leafwise.core.capabilities import Capability
from leafwise.core.capabilities.averaging import Averaging
from leafwise.core.capabilities.clipping import Clipping
from leafwise.core.capabilities.comparing import Comparing
from leafwise.core.capabilities.filling import Filling
from leafwise.core.capabilities.freezing import Freezing
from leafwise.core.capabilities.loading import Loading
from leafwise.core.capabilities.measuring import Measuring
from leafwise.core.capabilities.packing import Packing
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.capabilities.saving import Saving
from leafwise.core.capabilities.sharding import Distributing
from leafwise.core.capabilities.viewing import Viewing
from leafwise.core.home import Capabilities, Memory, Spec
from leafwise.errors import Unsupported
from leafwise.homes.torch.checkpoints.loading import TorchLoading
from leafwise.homes.torch.checkpoints.rebuilding import TorchRebuilding
from leafwise.homes.torch.checkpoints.saving import TorchSaving
from leafwise.homes.torch.home import TorchHome
from leafwise.homes.torch.parallel.sharding import TorchDistributing
from leafwise.homes.torch.ties.tied_views import TorchViewing
from leafwise.homes.torch.training.averaging import TorchAveraging
from leafwise.homes.torch.training.clipping import TorchClipping
from leafwise.homes.torch.training.freezing import TorchFreezing
from leafwise.homes.torch.training.packing import TorchPacking
from leafwise.homes.torch.values.comparing import TorchComparing
from leafwise.homes.torch.values.filling import TorchFilling
from leafwise.homes.torch.values.measuring import TorchMeasuring
from leafwise_gluon.arrays.values import ArrayValues, plain


def _over_tensors(capability: type[Capability]) -> type[Capability]:
    """Adapts a capability for tensors to arrays: every method gets the underlying tensors."""

    def method(name: str) -> Callable[..., Any]:
        def over(self: Any, *args: Any, **kwargs: Any) -> Any:
            tensors = [[*map(plain, arg)] if isinstance(arg, list) else plain(arg) for arg in args]
            return getattr(super(made, self), name)(*tensors, **kwargs)

        return over

    names = [name for name in dir(capability) if not name.startswith("_") and callable(getattr(capability, name))]
    made = type(capability.__name__.replace("Torch", "Array"), (capability,), {name: method(name) for name in names})
    return made


class ArrayClipping(_over_tensors(TorchClipping)):  # type: ignore[misc]
    def clip_together(self, values: list[Any], max_norm: float) -> list[float] | None:
        return None


class ArrayDistributing(_over_tensors(TorchDistributing)):  # type: ignore[misc]
    def local(self, value: Any) -> Any:
        return value


class ArrayFreezing(TorchFreezing):
    def cannot_train(self, value: Any, trainable: bool) -> str:
        return "it is a Gluon array; use attach_grad() or drop_grad()"


class ArrayPacking(TorchPacking):
    def cannot_pack(self, value: Any) -> str:
        return "it is a Gluon array; flatten a Block instead"


class ArrayRebuilding(TorchRebuilding):
    def allocate(self, value: Any, shape: tuple[int, ...]) -> Any:
        raise Unsupported(self.home.name, "allocate an array of another shape", "use np.zeros")


class ArrayHome(TorchHome):
    name = "gluon arrays"
    capabilities: ClassVar[Capabilities] = {
        **TorchHome.capabilities,
        Averaging: _over_tensors(TorchAveraging),
        Clipping: ArrayClipping,
        Comparing: _over_tensors(TorchComparing),
        Distributing: ArrayDistributing,
        Filling: _over_tensors(TorchFilling),
        Freezing: ArrayFreezing,
        Loading: _over_tensors(TorchLoading),
        Measuring: _over_tensors(TorchMeasuring),
        Packing: ArrayPacking,
        Rebuilding: ArrayRebuilding,
        Saving: _over_tensors(TorchSaving),
        Viewing: _over_tensors(TorchViewing),
    }

    def handles(self, cls: type) -> Literal["node", "leaf"] | None:
        return "leaf" if issubclass(cls, ArrayValues) else None

    def spec(self, value: Any) -> Spec:
        return super().spec(plain(value).detach())._replace(trainable=value.tensor.requires_grad or None)

    def specs(self, values: list[Any]) -> list[Spec]:
        return [self.spec(value) for value in values]

    def grads(self, values: list[Any]) -> list[Any]:
        return [value.grad for value in values]

    def cannot_read(self, value: Any) -> str:
        return super().cannot_read(plain(value))

    def read(self, value: Any, index: Any = ()) -> Any:
        return super().read(plain(value), index)

    def write(self, value: Any, array: Any) -> None:
        super().write(plain(value), plain(array))

    def storages(self, values: list[Any]) -> list[object | None]:
        return super().storages([*map(plain, values)])

    def memory(self, value: Any) -> Memory:
        return super().memory(plain(value))

    def own_gradient(self, value: Any) -> bool:
        return bool(value.tensor.requires_grad and value.tensor.is_leaf)


HOME = ArrayHome()
