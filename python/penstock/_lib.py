# SPDX-License-Identifier: Apache-2.0
"""Loads the C library, turns its errors into exceptions and opens its devices.

All other modules call the library through `lib` and pass return codes to `check`. Calls
through `lib` release the GIL. This module contains nothing about models or tensors."""

from __future__ import annotations

import errno as _errno
import operator
import os
import sys
import threading
from typing import Any, Callable, Dict, List, Optional, Tuple, Type

from ._ffi import ffi as ffi

_HERE = os.path.dirname(os.path.abspath(__file__))


def _open_library() -> Any:
    """Opens the library that $PENSTOCK_LIBRARY names. Without this variable, opens the
    libpenstock beside this file or, if there is none, the system's libpenstock."""
    own = os.path.join(_HERE, "libpenstock.so.0")
    if not os.path.exists(own):
        own = "libpenstock.so.0"
    return ffi.dlopen(os.environ.get("PENSTOCK_LIBRARY") or own)


lib = _open_library()


class PenstockError(OSError):
    """Raised if the library refused a call or the call failed. str(error) is a sentence for
    people.

    Attributes:
        errno: the error number, as in the module errno.
        reason: a short name for programs, such as "file-changed"; the names never change.
            `penstock explain` prints the same names.
        path: the file that the error is about, or None.
        tensor: the name of the tensor that the error is about, or None.
        offset: the byte offset in the file that the error is about, or None.
    """

    reason: str = "none"
    tensor: Optional[str] = None
    offset: Optional[int] = None

    @property
    def path(self) -> Optional[str]:
        """The file that the error is about, or None."""
        return None if self.filename is None else str(self.filename)

    def __str__(self) -> str:
        return str(self.strerror)

    def __reduce__(self) -> Any:
        own = next(kind for kind in type(self).__mro__ if kind.__module__ == __name__)
        args = (self.errno, self.strerror)
        return _unpickle_error, (own, args, self.filename, dict(self.__dict__))


def _unpickle_error(kind: Type["PenstockError"], args: Tuple[Any, ...], filename: Any,
                    state: Dict[str, Any]) -> "PenstockError":
    """Rebuilds a pickled PenstockError with all its attributes."""
    error = _new_error(kind, args[0], args[1], filename, state.get("tensor"))
    error.__dict__.update(state)
    return error


def _new_error(kind: Type["PenstockError"], number: int, message: str, path: Any,
               tensor: Optional[str]) -> "PenstockError":
    """Creates an error. It is also a SafetensorError if the safetensors package is loaded.

    The error for a missing file is not a SafetensorError, because the safetensors package
    raises plain FileNotFoundError for it."""
    if kind is not NotFoundError or tensor:
        kind = also_safetensor_error(kind)
    error = kind(number, message, path)
    if kind.__module__ != __name__:
        # SafetensorError has its message in args[0], and programs search for words there.
        error.args = (message,)
    return error


class FormatError(PenstockError, ValueError):
    """Raised if a file does not follow its format (safetensors, index or config). Also a
    ValueError."""


class NotFoundError(PenstockError, FileNotFoundError):
    """Raised if a file, a file that an index names, a tensor or a device does not exist."""


class ClassRefusedError(PenstockError):
    """Raised if no path of the required class (`require=`) can serve the call. No bytes have
    moved."""


# Number of bytes before and after a NUL that an error message quotes.
NEAR_NULL = 16


def to_c(text: Any, encode: Callable[[Any], bytes] = os.fsencode) -> bytes:
    """Converts a path to bytes for the library. With encode=str.encode, converts a name to
    UTF-8.

    Raises ValueError if the text contains a NUL, because a C string ends at the first NUL."""
    if encode is str.encode and not isinstance(text, str):
        raise TypeError(f"a name must be a str, not {text!r}")
    data = encode(text)
    at = data.find(b"\0")
    if at >= 0:
        # The message quotes only a part of the text. The text may be long, for example if a file's
        # content was passed in place of its path.
        near = data[max(0, at - NEAR_NULL):at + NEAR_NULL]
        raise ValueError(f"embedded null character at position {at} of a text of {len(data)} "
                         f"bytes, near {near!r}")
    return data


def unsigned(name: str, value: Any, bits: int = 32) -> int:
    """Returns `value` as an int. Raises ValueError if it does not fit into `bits` bits without a
    sign, and TypeError if it is no integer. `name` is the argument's name."""
    number = operator.index(value)
    if not 0 <= number < 1 << bits:
        raise ValueError(f"{name} must be a whole number from 0 to {(1 << bits) - 1}, not {number}")
    return number


def milliseconds(name: str, seconds: float) -> int:
    """Returns a number of seconds as whole milliseconds. Raises ValueError if the number is
    negative or infinite, or does not fit into 32 bits."""
    if not 0 <= seconds < (1 << 32) / 1000:
        raise ValueError(f"{name} must be a number of seconds from 0 to {(1 << 32) // 1000}, "
                         f"not {seconds}")
    return int(seconds * 1000)


def paths_of(path: Any) -> List[Any]:
    """Returns a list of paths, from one path or from an iterable of them."""
    if isinstance(path, (str, bytes, os.PathLike)):
        return [path]
    # An open file is iterable too, but that would yield its lines, not paths.
    if hasattr(path, "read") or not hasattr(path, "__iter__"):
        raise TypeError(f"expected a path or a list of paths, not {type(path).__name__}")
    return list(path)


def without_file_scheme(path: Any) -> Any:
    """Returns the path of a file URL such as "file:///tmp/a", and any other argument unchanged.

    Raises PenstockError if the URL has another host than localhost. Python and torch would take the
    URL for a relative path, and would create a folder named "file:"."""
    if not isinstance(path, str) or not path.startswith("file://"):
        return path
    host, slash, rest = path[len("file://"):].partition("/")
    if not slash or host.lower() not in ("", "localhost"):
        error = PenstockError(_errno.EINVAL, f"{path}: a file URL cannot name another host: write "
                              "file:///PATH, or only the path", path)
        error.reason = "bad-argument"
        raise error
    return slash + rest


_combined: Dict[Tuple[Any, Any], Any] = {}


def also_safetensor_error(kind: Any) -> Any:
    """Returns an exception class derived from `kind` and safetensors.SafetensorError.

    Programs written for the safetensors package catch SafetensorError. Returns `kind` itself
    if that package is not loaded."""
    theirs = getattr(sys.modules.get("safetensors"), "SafetensorError", None)
    if theirs is None or issubclass(kind, theirs):
        return kind
    if (kind, theirs) not in _combined:
        space: Dict[str, Any] = {"__module__": "penstock", "__doc__": kind.__doc__}
        if not issubclass(kind, PenstockError):
            space["__reduce__"] = lambda self: (_unpickle_combined, (kind, self.args))
        _combined[kind, theirs] = type(kind.__name__, (kind, theirs), space)
    return _combined[kind, theirs]


def _unpickle_combined(kind: Any, args: Tuple[Any, ...]) -> Any:
    """Rebuilds a pickled error. The process that unpickles it decides by its own loaded
    modules whether the error is also a SafetensorError."""
    return also_safetensor_error(kind)(*args)


def decode(data: Any) -> str:
    return str(ffi.string(data).decode("utf-8", "replace"))


def _with_whole_path(text: str, path: Optional[str]) -> str:
    """Returns `text` with the whole `path` in place of its end. The library's messages have room
    for the last 250 bytes of a path only."""
    if path is None or path in text:
        return text
    for length in range(min(len(path), 250), 40, -1):
        at = text.find(path[-length:])
        # Characters before the match would be of another path, with the same end.
        if at == 0 or at > 0 and text[at - 1] in " '\"(":
            return text[:at] + path + text[at + length:]
    return text


def make_error(code: int, path: Optional[str] = None, *, has_place: bool = True,
               message: Optional[str] = None) -> PenstockError:
    """Returns the exception for the library's last failure on this thread.

    `path` is the file to name if the library names none. has_place=False means that the failed
    function does not handle files or tensors. In that case, the file, tensor and offset that
    the library remembers belong to an earlier failure, so this function does not read them.
    `message` replaces the library's message."""
    text, why = lib.penstock_errmsg(), int(lib.penstock_errwhy())
    place = ffi.new("struct penstock_weights_place *")
    place.size, place.off = ffi.sizeof("struct penstock_weights_place"), 2**64 - 1
    if has_place:
        lib.penstock_weights_get_place(place)
        text = place.text
    number = -code
    kind: Type[PenstockError] = PenstockError
    if number == _errno.EBADMSG:
        kind = FormatError
    elif number == _errno.ENOENT:
        kind = NotFoundError
    elif number == _errno.EOPNOTSUPP:
        kind = ClassRefusedError
    tensor = decode(place.tensor) or None
    error = _new_error(kind, number, message or _with_whole_path(decode(text), path),
                       os.fsdecode(ffi.string(place.file)) or path, tensor)
    error.reason, error.tensor = decode(lib.penstock_why_name(why)), tensor
    error.offset = None if place.off == 2**64 - 1 else int(place.off)
    return error


def check(code: int, path: Optional[str] = None, *, has_place: bool = True) -> int:
    """Returns `code`. If `code` is negative, raises the exception of make_error."""
    if code < 0:
        raise make_error(code, path, has_place=has_place)
    return code


def call_for_handle(kind: str, free: Callable[[Any], Any], call: Callable[..., int],
                    *args: Any) -> Tuple[int, Any]:
    """Calls a function of the library that returns a handle through its last argument.

    Returns the code and the handle. `free` runs when the last reference to the handle is
    dropped, and also if a signal handler raises before the caller has received the handle.
    `free` must not be Python code: Python runs signal handlers inside Python code, and an
    exception that a handler raises inside a destructor is lost."""
    out = ffi.new(kind)
    try:
        code = call(*args, out)
    except BaseException:
        free(out[0])
        raise
    return code, ffi.gc(out[0], free)


def install_stop_check(opts: Any, keep: List[Any], stop: Any = None,
                       tell: Optional[Callable[..., Any]] = None) -> List[BaseException]:
    """Sets opts.look to a callback that ends the library call when `stop` is set.

    The library calls opts.look some ten times a second while it waits. On the main thread
    Python also runs its signal handlers inside the callback. If a handler raises, as Ctrl-C
    does, the library ends the call, and the exception is appended to the returned list. The
    caller raises it with raise_caught after the call, when the library no longer uses the
    caller's memory. Without `stop` and `tell` no callback is set on other threads, since Python
    runs no signal handler there. `keep` receives the callback, which must live as long as `opts`.
    `tell` is called each time with the arguments that the library passes after `user`."""
    caught: List[BaseException] = []
    if stop is not None and not callable(getattr(stop, "is_set", None)):
        raise TypeError(f"stop must be a threading.Event, not {stop!r}")
    if stop is None and tell is None and \
            threading.current_thread() is not threading.main_thread():
        return caught

    def look(_user: Any, *facts: Any) -> int:
        if tell is not None:
            tell(*facts)
        return int(stop is not None and bool(stop.is_set()))

    keep.append(ffi.callback(ffi.typeof(opts.look), look, error=1,
                             onerror=lambda _kind, error, _trace: caught.append(error)))
    opts.look = keep[-1]
    return caught


def raise_caught(caught: List[BaseException]) -> None:
    """If install_stop_check caught an exception during a call, raises the exception."""
    if caught:
        raise caught.pop()


# ---- devices -----------------------------------------------------------------

_devices: Dict[str, Any] = {}  # The handles of the devices that this process has opened.
# The kinds of devices: the part before the colon in the library's name of a device.
DEVICE_KINDS = {"host", "cuda", "peermem", "auto"}
_lock = threading.Lock()


def _in_child() -> None:
    """Forgets the parent's devices in a child of fork. Replaces the lock, too: the thread that held
    it may not exist there."""
    global _lock  # pylint: disable=global-statement
    _lock = threading.Lock()
    _devices.clear()


os.register_at_fork(after_in_child=_in_child)


def device_name(device: Any) -> str:
    """Returns the library's name of a device.

    Accepts None and "cpu" (both "host"), a GPU's index (also numpy's integers), "cuda" (the
    current GPU of torch), "cuda:1", a torch.device and "auto"."""
    if device is None:
        return "host"
    if hasattr(device, "__index__"):
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
    """Returns the library's handle of a device. Opens the device once in each process.

    The handle stays open until the process exits, because a device's threads and pinned
    memory are expensive to start."""
    name = device_name(device)
    handle = _devices.get(name)
    if handle is not None:
        return handle
    with _lock:
        handle = _devices.get(name)
        if handle is None:
            out = ffi.new("struct penstock_device **")
            code = lib.penstock_device_open(to_c(name, str.encode), ffi.NULL, out)
            if code == -_errno.ENODEV and name.partition(":")[0] not in DEVICE_KINDS:
                # The library's own message names "host", which this package calls "cpu".
                raise make_error(code, has_place=False,
                                 message=f"'{name}': no such device, use 'cpu', 'cuda:N', "
                                 "'peermem:BDF' or 'auto'")
            check(code, has_place=False)
            handle = _devices[name] = out[0]
    return handle


def open_holder(device: str) -> Any:
    """Returns the handle of the device on which a tensor's memory is. Returns NULL if the C library
    must find the device from the memory's address. torch regards mapped memory of a PCI device as
    "cpu". So in a process that has opened such a device ("peermem:..."), "host" may be wrong, and
    this function returns NULL for it."""
    if device == "host":
        names = list(_devices)
        if names != ["host"] and any(n.startswith("peermem:") for n in names):
            return ffi.NULL
    return _devices.get(device) or open_device(device)


def handle_name(handle: Any) -> str:
    """Returns the name of an open device. A device opened as "auto" is "cuda:0" or "host"."""
    return decode(lib.penstock_device_name(handle))
