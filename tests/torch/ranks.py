"""Runs of this folder's scripts in processes that are forked from one which has imported torch: to import it takes each process
3 s, which is more than most of the scripts do."""

import multiprocessing
import os
import runpy
import sys
from multiprocessing.connection import wait
from pathlib import Path

HERE = Path(__file__).resolve().parent
PYTHON = HERE.parents[1] / "python"

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["torch", "torch.nn.parallel", "torch.distributed.fsdp"])


def _run(output, errors, environment, script, words):
    for path, descriptor in ((output, 1), (errors, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), descriptor)
    os.environ.update(environment)
    import torch

    torch.set_num_threads(1)
    sys.path.insert(0, str(PYTHON))
    sys.argv = [str(script), *words]
    runpy.run_path(str(script), run_name="__main__")


class Script:
    """A script that runs. What it prints stands in files of its own."""

    def __init__(self, script, *words, environment, output, errors):
        self.output, self.errors = Path(output), Path(errors)
        arguments = (self.output, self.errors, environment, HERE / script, [str(word) for word in words])
        self.process = _processes.Process(target=_run, args=arguments, daemon=True)
        self.process.start()

    def text(self):
        return self.output.read_text() if self.output.exists() else ""

    def error_text(self):
        return self.errors.read_text() if self.errors.exists() else ""

    def running(self):
        return self.process.exitcode is None

    def kill(self):
        self.process.kill()
        self.process.join()

    def end(self, timeout_s):
        """Its exit status; None where it runs on."""
        self.process.join(timeout_s)
        return self.process.exitcode


def end_of_all(scripts, timeout_s):
    """Exit statuses. Where one fails or the time passes the others are killed."""
    left = list(scripts)
    while left:
        ended = wait([script.process.sentinel for script in left], timeout_s)
        failed = not ended or any(script.process.exitcode for script in left if script.process.sentinel in ended)
        left = [script for script in left if script.process.sentinel not in ended]
        if failed:
            for script in left:
                script.kill()
            break
    return [script.end(0) for script in scripts]
