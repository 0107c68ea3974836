# SPDX-License-Identifier: Apache-2.0
"""Runs a function in several processes that communicate by torch.distributed with gloo.

The processes are forked, because importing torch in each of 16 processes would take a minute."""

import multiprocessing
import os
import pickle
import tempfile
import time
import traceback

import torch
import torch.distributed as dist

torch.set_num_threads(1)
# Whether a process calls destroy_process_group. In torch 2.4, this function holds the GIL while it
# waits for a thread that may need the GIL.
DESTROY = not torch.__version__.startswith("2.4.")


def _send(pipe, value):
    # pickle.dumps copies a tensor's bytes into the message. Pipe.send would only pass a
    # reference to memory of this process, which ends soon.
    pipe.send_bytes(pickle.dumps(value))


def _rank(call, rank, count, store, pipe, args):
    try:
        os.environ.update(LOCAL_WORLD_SIZE=str(count), LOCAL_RANK=str(rank), RANK=str(rank),
                          WORLD_SIZE=str(count))
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank,
                                world_size=count)
        _send(pipe, (True, call(rank, *args)))
        if DESTROY:
            dist.destroy_process_group()
    except BaseException as error:  # The parent reports it.
        _send(pipe, (False, (error.__class__.__name__, str(error), traceback.format_exc())))
    finally:
        pipe.close()
        os._exit(0)


def start(count, call, *args):
    """Starts `count` processes that call call(rank, *args). Returns them with their pipes."""
    context = multiprocessing.get_context("fork")
    folder = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
    started = []
    for rank in range(count):
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_rank, args=(call, rank, count,
                                                      os.path.join(folder, "store"), there, args))
        process.start()
        there.close()
        started.append((process, here))
    return started


def results(started, seconds=120):
    """Waits for the processes. Returns for each: its result, an error as (name, text, trace), or
    None if it died."""
    end, found = time.monotonic() + seconds, []
    for process, pipe in started:
        try:
            if not pipe.poll(max(0.0, end - time.monotonic())):
                found.append((False, ("Timeout", f"no result in {seconds} s", "")))
                process.kill()
            else:
                found.append(pickle.loads(pipe.recv_bytes()))
        except EOFError:
            found.append((False, None))
        process.join()
    return found


def run(count, call, *args, seconds=120):
    """Runs a function in `count` processes, and returns the list of their results. Raises
    AssertionError if one fails."""
    found = results(start(count, call, *args), seconds)
    for rank, (ok, value) in enumerate(found):
        assert ok, f"rank {rank}: " + (value[2] or value[1] if value else "died")
    return [value for _, value in found]
