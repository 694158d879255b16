"""A device that is not there: tensors that were sent to it are computed with as ever, and meet no tensor that was not sent.

A processor's tensors forgive what a GPU does not: a target that stayed behind, `numpy()` without `cpu()`, a buffer that was made on the
wrong side. Inside `far_device()` torch knows a further device, `FAR`, whose tensors refuse all that as CUDA's do. Their numbers lie in
the processor's memory, so that answers can be compared to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

#: A kind of device that torch knows by name and has no code for, so that nothing is computed there by itself.
FAR = "lazy"
#: What CUDA lets tensors of two devices do together.
_ACROSS = ("copy_", "_to_copy", "index", "index_put", "index_put_", "_index_put_impl_")


class DeviceMixed(AssertionError):
    """Tensors of two devices met."""


class Far(torch.Tensor):
    """near: its numbers."""

    near: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, near: torch.Tensor) -> Far:
        made: Far = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, near.size(), strides=near.stride(), storage_offset=near.storage_offset(), dtype=near.dtype, device=FAR
        )
        made.near = near
        return made

    def __getitem__(self, at: Any) -> torch.Tensor:
        """A list of places becomes a tensor first: torch would make one on the device, below a mode."""
        return super().__getitem__(torch.tensor(at) if isinstance(at, list) else at)

    def tolist(self) -> Any:
        """Comes to the processor by itself, as from a GPU; `numpy` does not."""
        return self.near.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


class _Device(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What torch does for tensors of any device: the same numbers, on the device of the inputs or the one that was asked for."""
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        with _Device():  # inference mode does not take these apart
            return func.decompose(*args, **kwargs)
    given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    sent = [t for t in given if isinstance(t, Far)]
    asked = kwargs.get("device")
    to_far = bool(sent) if asked is None else torch.device(asked).type == FAR
    name = func._schema.name.removeprefix("aten::")
    if sent and name not in _ACROSS and any(t.dim() for t in given if not isinstance(t, Far)):
        raise DeviceMixed(f"{func}: {[(t.device.type, tuple(t.shape)) for t in given]}")
    known = {id(t.near): t for t in sent}
    near_args, near_kwargs = tree_map(lambda t: t.near if isinstance(t, Far) else t, (args, kwargs))
    if asked is not None:
        near_kwargs["device"] = torch.device("cpu")
    out = func(*near_args, **near_kwargs)

    def placed(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in known:
            return known[id(value)]  # changed in place
        return Far(value) if to_far and not any(value is t for t in given) else value

    return tree_map(placed, out)


@contextmanager
def far_device() -> Iterator[str]:
    """The device's name."""
    autocast: Callable[..., Any] = torch.autocast

    def without(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return autocast("cpu" if device_type == FAR else device_type, *args, **kwargs)

    def sent(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """Torch fills it on the device, below where a mode could step in."""

        def made(data: Any, *, device: Any = None, **kwargs: Any) -> torch.Tensor:
            return make(data, **kwargs) if device is None else make(data, **kwargs).to(device)

        return made

    changed: dict[str, Any] = {"autocast": without, "tensor": sent(torch.tensor), "as_tensor": sent(torch.as_tensor)}
    with _Device(), mock.patch.multiple(torch, **changed):
        yield FAR
