# SPDX-License-Identifier: Apache-2.0
"""The C library: where it is, its errors as exceptions, its devices. Everything
else in the package goes through `lib` and `check`; nothing here decides anything
about weights. Calls into `lib` run without the GIL."""

from __future__ import annotations

import errno as _errno
import os
import sys
import threading
from typing import Any, Callable, Dict, List, Optional, Tuple, Type

from ._ffi import ffi as ffi

_HERE = os.path.dirname(os.path.abspath(__file__))


def _open_library() -> Any:
    own = os.path.join(_HERE, "libpenstock.so.0")
    if not os.path.exists(own):
        own = "libpenstock.so.0"
    return ffi.dlopen(os.environ.get("PENSTOCK_LIBRARY") or own)


lib = _open_library()


class PenstockError(OSError):
    """What the library refused or could not do: `errno`, `reason` (a short name that
    stays), `path`, `tensor` and `offset` where they are known, and the sentence."""

    reason: str = "none"
    tensor: Optional[str] = None
    offset: Optional[int] = None

    @property
    def path(self) -> Optional[str]:
        return None if self.filename is None else str(self.filename)

    def __str__(self) -> str:
        return str(self.strerror)

    def __reduce__(self) -> Any:
        own = next(kind for kind in type(self).__mro__ if kind.__module__ == __name__)
        args = (self.errno, self.strerror)
        return _error_again, (own, args, self.filename, dict(self.__dict__))


def _error_again(kind: Type["PenstockError"], args: Tuple[Any, ...], filename: Any,
                 state: Dict[str, Any]) -> "PenstockError":
    error = _new(kind, args[0], args[1], filename, state.get("tensor"))
    error.__dict__.update(state)
    return error


def _new(kind: Type["PenstockError"], number: int, message: str, path: Any,
         tensor: Optional[str]) -> "PenstockError":
    """Theirs, too, where their package is loaded; a file that is not there is not."""
    if kind is not NotFoundError or tensor:
        kind = also_theirs(kind)
    error = kind(number, message, path)
    if kind.__module__ != __name__:
        error.args = (message,)  # as theirs has it; programs look for words in args[0]
    return error


class FormatError(PenstockError, ValueError):
    """A file that is not what its format says."""


class NotFoundError(PenstockError, FileNotFoundError):
    """A file, an index' part, a tensor or a device that is not there."""


class ClassRefusedError(PenstockError):
    """The class that was required cannot be met; nothing was moved."""


def to_c(text: Any, encode: Callable[[Any], bytes] = os.fsencode) -> bytes:
    """A path for the library, or by str.encode a name, which is UTF-8 everywhere. The
    library would see it end at a zero."""
    if encode is str.encode and not isinstance(text, str):
        raise TypeError(f"a name is text, not {text!r}")
    data = encode(text)
    if b"\0" in data:
        raise ValueError(f"embedded null character in {text!r}")
    return data


def paths_of(path: Any) -> List[Any]:
    """One, or what makes several."""
    if isinstance(path, (str, bytes, os.PathLike)):
        return [path]
    if hasattr(path, "read") or not hasattr(path, "__iter__"):  # a file's items are its lines
        raise TypeError(f"a path or a list of them, not {type(path).__name__}")
    return list(path)


_twins: Dict[Tuple[Any, Any], Any] = {}


def also_theirs(kind: Any) -> Any:
    """That kind of exception, which where the safetensors package is loaded is also one of
    its SafetensorError: programs written for it catch that."""
    theirs = getattr(sys.modules.get("safetensors"), "SafetensorError", None)
    if theirs is None or issubclass(kind, theirs):
        return kind
    if (kind, theirs) not in _twins:
        space: Dict[str, Any] = {"__module__": "penstock", "__doc__": kind.__doc__}
        if not issubclass(kind, PenstockError):
            space["__reduce__"] = lambda self: (_twin_again, (kind, self.args))
        _twins[kind, theirs] = type(kind.__name__, (kind, theirs), space)
    return _twins[kind, theirs]


def _twin_again(kind: Any, args: Tuple[Any, ...]) -> Any:
    """As it is pickled: for who reads it, by whether that package is loaded there."""
    return also_theirs(kind)(*args)


def _text(data: Any) -> str:
    return str(ffi.string(data).decode("utf-8", "replace"))


def make_error(code: int, path: Optional[str] = None, *, placed: bool = True) -> PenstockError:
    """The exception for the library's last failure on this thread; not `placed` where that
    knew of no file or tensor: what the library has of those is of a failure before."""
    message, why = _text(lib.penstock_errmsg()), int(lib.penstock_errwhy())
    place = ffi.new("struct penstock_weights_place *")
    place.size, place.off = ffi.sizeof("struct penstock_weights_place"), 2**64 - 1
    if placed:
        lib.penstock_weights_get_place(place)
    number = -code
    kind: Type[PenstockError] = PenstockError
    if number == _errno.EBADMSG:
        kind = FormatError
    elif number == _errno.ENOENT:
        kind = NotFoundError
    elif number == _errno.EOPNOTSUPP:
        kind = ClassRefusedError
    tensor = _text(place.tensor) or None
    error = _new(kind, number, message, os.fsdecode(ffi.string(place.file)) or path, tensor)
    error.reason, error.tensor = _text(lib.penstock_why_name(why)), tensor
    error.offset = None if place.off == 2**64 - 1 else int(place.off)
    return error


def check(code: int, path: Optional[str] = None, *, placed: bool = True) -> int:
    if code < 0:
        raise make_error(code, path, placed=placed)
    return code


def take(kind: str, free: Callable[[Any], Any], call: Callable[..., int],
         *args: Any) -> Tuple[int, Any]:
    """Calls the library, which gives out a handle by its last argument. That is freed with the
    last who has it, and where a signal's handler raises before anybody has. `free` is no
    Python: handlers run in that, and what they raise would be lost."""
    out = ffi.new(kind)
    try:
        code = call(*args, out)
    except BaseException:
        free(out[0])
        raise
    return code, ffi.gc(out[0], free)


def heed(opts: Any, keep: List[Any], stop: Any = None) -> List[BaseException]:
    """Has the library ask now and then, while it waits, whether to go on: until `stop` is
    set. On the main thread Python's handlers of signals run in it, too, and what one raises,
    as that of Ctrl-C does, is in the list when the call is over: the library's memory and
    the caller's are nobody else's by then. Other threads have nothing to say otherwise."""
    caught: List[BaseException] = []
    if stop is None and threading.current_thread() is not threading.main_thread():
        return caught
    keep.append(ffi.callback("int(void *)",
                             lambda _user: int(stop is not None and bool(stop.is_set())), error=1,
                             onerror=lambda _kind, error, _trace: caught.append(error)))
    opts.look = keep[-1]
    return caught


def raise_caught(caught: List[BaseException]) -> None:
    if caught:
        raise caught.pop()


# ---- devices -----------------------------------------------------------------

_devices: Dict[Tuple[int, str], Any] = {}
_lock = threading.Lock()


def _in_child() -> None:
    """Who had the lock is not here."""
    global _lock  # pylint: disable=global-statement
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_in_child)


def device_name(device: Any) -> str:
    """What torch and people call a device, as the library does: "cpu", 0, "cuda",
    "cuda:1", torch.device(...) and "auto"."""
    if device is None:
        return "host"
    if hasattr(device, "__index__"):  # numpy's numbers, too
        return f"cuda:{device.__index__()}"
    text = str(device)
    if text in ("cpu", "cpu:0", "host"):
        return "host"
    if text == "cuda":
        return f"cuda:{_current_cuda()}"
    return text


def _current_cuda() -> int:
    torch = sys.modules.get("torch")
    return int(torch.cuda.current_device()) if torch and torch.cuda.is_available() else 0


def open_device(device: Any) -> Any:
    """The library's handle, opened once a process and kept: its pump is worth it."""
    name, pid = device_name(device), os.getpid()
    with _lock:
        handle = _devices.get((pid, name))
        if handle is None:
            out = ffi.new("struct penstock_device **")
            check(lib.penstock_device_open(to_c(name, str.encode), ffi.NULL, out), placed=False)
            handle = _devices[(pid, name)] = out[0]
    return handle


def handle_name(handle: Any) -> str:
    return _text(lib.penstock_device_name(handle))
