"""The state of modules and optimizers in items: a parameter with its moments each, and one for what else there is."""

import ctypes
import json
import math
import struct

import torch


class ParameterItems:
    """`parts` by name, among them the optimizers whose parameters are the items; the others have state_dict() and load_state_dict().

    Item 0 is what else there is: learning rates, buffers, parameters that are not trained. A member that applies a step to some of the
    parameters needs the learning rates first."""

    def __init__(self, parts):
        self._parts = parts
        self._optimizers = [part for part in parts.values() if isinstance(part, torch.optim.Optimizer)]
        trained = [parameter for optimizer in self._optimizers for group in optimizer.param_groups for parameter in group["params"]]
        self._parameters = list({id(parameter): parameter for parameter in trained}.values())
        self.count = 1 + len(self._parameters)

    def save(self, item):
        if item == 0:
            return pack({name: self._rest_of(part) for name, part in self._parts.items()})
        parameter = self._parameters[item - 1]
        return pack([parameter, [optimizer.state.get(parameter, {}) for optimizer in self._optimizers]])

    def load(self, item, data):
        value = unpack(data)
        if item == 0:
            for name, rest in value.items():
                self._load_rest(self._parts[name], rest)
            return
        parameter, (content, states) = self._parameters[item - 1], value
        with torch.no_grad():
            parameter.copy_(content)
        for optimizer, state in zip(self._optimizers, states, strict=True):
            optimizer.state[parameter] = {name: _beside(parameter, entry) for name, entry in state.items()}

    def skip_from(self, item):
        """The optimizers' next step leaves this item, and those behind it, alone."""
        for parameter in self._parameters[max(item - 1, 0) :]:
            parameter.grad = None

    def _rest_of(self, part):
        if isinstance(part, torch.optim.Optimizer):
            return [{name: value for name, value in group.items() if name != "params"} for group in part.param_groups]
        state = part.state_dict()
        if isinstance(part, torch.nn.Module):
            mine = {id(parameter) for parameter in self._parameters}
            for name, parameter in part.named_parameters(remove_duplicate=False):
                if id(parameter) in mine:
                    state.pop(name, None)
        return state

    def _load_rest(self, part, rest):
        if isinstance(part, torch.optim.Optimizer):
            for group, values in zip(part.param_groups, rest, strict=True):
                group.update(values)
        elif isinstance(part, torch.nn.Module):
            part.load_state_dict(rest, strict=False)
        else:
            part.load_state_dict(rest)


def _beside(parameter, entry):
    """Counters stay in main memory, as torch keeps them."""
    return entry.to(parameter.device) if isinstance(entry, torch.Tensor) and entry.dim() else entry


# ---- equal values have equal bytes, in all processes: pickle does not promise that ----


def pack(value):
    tensors = []

    def plain(value):
        if isinstance(value, torch.Tensor):
            tensors.append(value.detach().cpu().contiguous())
            return {"tensor": [str(value.dtype).removeprefix("torch."), list(value.shape)]}
        if isinstance(value, dict):
            return {"dict": [[plain(key), plain(entry)] for key, entry in value.items()]}
        if isinstance(value, (list, tuple)):
            return {"tuple" if isinstance(value, tuple) else "list": [plain(entry) for entry in value]}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise TypeError(f"a state with a {type(value).__name__} in it cannot be given in items: keep tensors, numbers, strings, None, and "
                        "dicts, lists and tuples of these in state_dict(), or give the state whole, without `share`")  # fmt: skip

    head = json.dumps(plain(value)).encode()
    return b"".join([struct.pack("<Q", len(head)), head, *(ctypes.string_at(t.data_ptr(), t.nbytes) for t in tensors)])


def unpack(data):
    (length,) = struct.unpack_from("<Q", data)
    offset = 8 + length

    def full(value):
        nonlocal offset
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        if kind == "dict":
            return {full(key): full(entry) for key, entry in content}
        if kind != "tensor":
            return (tuple if kind == "tuple" else list)(full(entry) for entry in content)
        kind, shape = getattr(torch, content[0], None), content[1]
        if not isinstance(kind, torch.dtype) or not all(isinstance(size, int) and size >= 0 for size in shape):
            raise ValueError(f"an item of the state with a tensor of type {content[0]} and shape {shape}: do all members run the same torch?")
        size = math.prod(shape) * kind.itemsize
        content = data[offset : offset + size]
        if len(content) != size:
            raise ValueError(f"an item of the state with {len(content)} bytes for a tensor of {size}: do all members run the same program?")
        tensor = torch.empty(shape, dtype=kind)
        ctypes.memmove(tensor.data_ptr(), content, size)
        offset += size
        return tensor

    return full(json.loads(data[8:offset]))
