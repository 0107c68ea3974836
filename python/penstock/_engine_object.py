# SPDX-License-Identifier: Apache-2.0
"""Models in an object store, for the loaders of serving engines (vllm.py and sglang.py).

An engine reads the config and the tokenizer of a model from a local folder. This module copies
these small files from the store to a folder in the user's cache. It never reads the weights: the
engine's loader gets the URL of the model, and reads the safetensors files from the store itself."""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import hashlib
import json
import logging
import os
import shutil
import tempfile
import threading
from typing import Any, Dict, List, Optional, Union

from ._lib import PenstockError
from ._model import Model
from ._objects import ObjectClient, ObjectInfo
from ._s3 import quote, unquote

log = logging.getLogger("penstock")

SCHEME = "s3://"
# Endings of files with weights. An engine reads no such file from the local folder.
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".tensors", ".gguf", ".h5", ".msgpack",
           ".onnx", ".npz")
# Number of files that are copied at the same time.
COPIES = 8
# Advice at the end of each message about a request that failed.
ADVICE = ("Check the URL and the environment variables AWS_ENDPOINT_URL (address of the store, if "
          "it is not Amazon S3), AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION")

_folders: Dict[str, str] = {}  # local folders by URL, guarded by _lock
_weights: Dict[str, Union[str, List[str]]] = {}  # results of _weights_in by URL
_lock = threading.Lock()


def is_object(name: Any) -> bool:
    """Returns whether the name of a model is the URL of an object store."""
    return isinstance(name, str) and name.startswith(SCHEME)


def _client_of(url: str) -> ObjectClient:
    """Returns a client of the bucket of `url`, with the options in the URL's query."""
    place, _, query = url.partition("?")
    bucket = place[len(SCHEME):].partition("/")[0]
    client = ObjectClient(bucket=bucket)
    client._query = "?" + query if query else ""
    return client


def _prefix_of(url: str) -> str:
    """Returns the beginning of the keys of a model's files: "" or a text that ends with a slash."""
    key = unquote(url.partition("?")[0][len(SCHEME):].partition("/")[2].replace("+", "%2B"))
    return key.rstrip("/") + "/" if key.strip("/") else ""


def _weights_in(url: str, names: List[str]) -> Union[str, List[str]]:
    """Returns the argument of Model for the weights of a model: its URL, or the URLs of all
    safetensors files if the model has neither an index nor the usual name of a single file."""
    if "model.safetensors.index.json" in names or "model.safetensors" in names:
        return url
    place, mark, query = url.partition("?")
    return [f"{place.rstrip('/')}/{quote(name)}{mark}{query}" for name in sorted(names)
            if name.endswith(".safetensors") and "/" not in name] or url


def _check_files(url: str, names: List[str], needs_weights: bool) -> None:
    """Raises FileNotFoundError if a folder in the store is no model that an engine can load."""
    if not names:
        raise FileNotFoundError(f"{url} has no files, or the key may not read them. {ADVICE}")
    if not needs_weights:
        return
    if "config.json" not in names and "params.json" not in names:
        raise FileNotFoundError(f"{url} has no config.json. Copy all files of the model to this "
                                "place, not only its weights")
    if not any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names):
        raise FileNotFoundError(f"{url} has no safetensors files, and Penstock reads no other "
                                "format. Convert the model to safetensors, or copy it to a local "
                                "folder and use the engine's own loader")


def _copy(client: ObjectClient, found: ObjectInfo, path: str) -> None:
    """Copies an object to a file, which another process may be reading."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    data = client.get_bytes(found.name) if found.nbytes else b""
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(path), delete=False) as f:
        try:
            f.write(data)
            f.flush()
            os.replace(f.name, path)
        except BaseException:
            os.unlink(f.name)
            raise


def _copy_all(url: str, folder: str, needs_weights: bool) -> None:
    """Copies all files of a model, except its weights, to a folder. Removes other files from the
    folder."""
    client, prefix = _client_of(url), _prefix_of(url)
    found = {info.name[len(prefix):]: info for info in client.list(prefix)}
    _check_files(url, [name for name in found if not name.endswith("/")], needs_weights)
    wanted = {name: info for name, info in found.items() if not name.endswith(("/",) + WEIGHTS)}
    for name in [name for name in wanted if {"", ".", ".."} & set(name.split("/"))]:
        log.warning("%s: the file %r is not copied, because its name leads out of the folder", url,
                    name)
        del wanted[name]
    _weights[url] = _weights_in(url, list(found))
    for place, _, names in os.walk(folder):
        for old in (os.path.join(place, name) for name in names):
            if os.path.relpath(old, folder) not in wanted:
                os.unlink(old)
    with concurrent.futures.ThreadPoolExecutor(COPIES, "penstock-config") as pool:
        for copy in [pool.submit(_copy, client, info, os.path.join(folder, name))
                     for name, info in wanted.items()]:
            copy.result()


def _remove(folder: str, process: int) -> None:
    """Removes a folder at the exit of the process that made it, not of its children."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _folder_for(url: str) -> str:
    """Makes the local folder of a model, and returns its path.

    The path is the same in each run of the engine, because vLLM's compilation cache depends on the
    path of the model. If the cache folder cannot be written to, the folder is a temporary one."""
    store = f"{os.environ.get('AWS_ENDPOINT_URL')} {url}".encode("utf-8", "surrogateescape")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.path.join(base, "penstock", "models", hashlib.sha256(store).hexdigest()[:16])
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        folder = tempfile.mkdtemp(prefix="penstock-model-")
        atexit.register(_remove, folder, os.getpid())
    return folder


def config_folder(url: str, needs_weights: bool = True) -> str:
    """Copies the config, the tokenizer and the other small files of a model from an object store
    to a local folder, and returns the folder.

    Further calls for this URL return the same folder, and copy nothing. With needs_weights=False,
    the URL may name only a tokenizer. Raises FileNotFoundError or PenstockError, with advice, if
    the store does not have the model or refuses the requests."""
    with _lock:
        if url not in _folders:
            folder = _folder_for(url)
            try:
                _copy_all(url, folder, needs_weights)
            except PenstockError as error:
                with contextlib.suppress(OSError):
                    os.rmdir(folder)  # The folder stays if it has the files of an earlier run.
                error.strerror = (f"{url.partition('?')[0]}: the model cannot be read: "
                                  f"{error.strerror}. {ADVICE}")
                raise
            _folders[url] = folder
        return _folders[url]


def url_of(folder: Any) -> Optional[str]:
    """Returns the URL of the model whose small files are in a folder that config_folder made, or
    None."""
    name = os.path.realpath(os.fspath(folder))
    with _lock:
        return next((url for url, made in _folders.items() if os.path.realpath(made) == name),
                    None)


def weights_of(url: str) -> Union[str, List[str]]:
    """Returns the argument of Model for the weights of a model for which config_folder has returned
    a folder."""
    return _weights.get(url, url)


def headers(url: str) -> Dict[str, Dict[str, Any]]:
    """Returns the dtype and the shape of each tensor of a model, by the tensors' names, like the
    headers of its safetensors files."""
    return {info.name: {"dtype": info.dtype, "shape": list(info.shape)}
            for info in Model(weights_of(url)).infos}


def localize(args: Any, model: str, tokenizer: str) -> None:
    """Changes the arguments of an engine whose model is in an object store.

    `model` and `tokenizer` are the names of the attributes of `args` for the model and the
    tokenizer. The engine then reads the config and the tokenizer from a local folder. The key
    `weights` of its loader options says where the weights are. Clients of the engine's server
    still find the model under its URL."""
    url, words = getattr(args, model), getattr(args, tokenizer)
    if is_object(words) and words != url:
        setattr(args, tokenizer, config_folder(words, needs_weights=False))
    if not is_object(url):
        return
    extra = args.model_loader_extra_config
    given = json.loads(extra) if isinstance(extra, str) and extra else dict(extra or {})
    folder = config_folder(url, needs_weights="weights" not in given)
    given.setdefault("weights", weights_of(url))
    if words in (None, url):
        setattr(args, tokenizer, folder)
    if not args.served_model_name:
        args.served_model_name = url
    args.model_loader_extra_config = json.dumps(given) if isinstance(extra, str) else given
    setattr(args, model, folder)


__all__ = ["config_folder", "headers", "is_object", "localize", "url_of", "weights_of"]
