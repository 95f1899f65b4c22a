"""A slip in an option of a verb that starts agents ends it at once, with the option's name or what was given, and leaves no process behind; so does a signal before anything is served."""

import json
import os
import re
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from test_train import ONE, TALES, make_plan, tokens_of

WRONG = "/dev/null/a slip,"  # no file or folder, nor can it be made one; no number, size, time, type, device, name or address
SMALL = {"--memory": "200 MiB", "--name": "alpha", "--device-threads": "1"}
LINK = f"motley://127.0.0.1:1/motley?driver=127.0.0.1:1&authority=sha256:{'0' * 64}&token=t"
TIMEOUT_S = 60


def options_of(motley, verb):
    """Those that take a value, as the help lists them; any text may be a key."""
    text = subprocess.run([motley, verb, "--help"], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^  (?:-\w,)?(--[\w-]+) (?!Excludes:|Needs:)(\S+)", text, re.MULTILINE)
    return [name for name, kind in found if kind != "KEY"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    (home / "motley/agents").mkdir(parents=True)
    return {**os.environ, "XDG_STATE_HOME": str(home), "XDG_CACHE_HOME": str(home)}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Verb -> arguments that would start it, by option ("" are the others)."""
    folder = tmp_path_factory.mktemp("slips")
    plan = make_plan(folder, ONE)
    train = {"--model": TALES, "--data": tokens_of(folder, 32), "--output": folder / "run", "--steps": 2, "": [plan, "--agents"]}
    return {
        "up": {"--model": TALES, "--listen": "127.0.0.1", "--port": 0, **SMALL},
        "join": {**SMALL, "": [LINK]},
        "train": {**train, "--listen": "127.0.0.1", **SMALL, "--name": "box"},
    }


def words_of(verb, given):
    return [verb, *given.get("", []), *(word for name, value in given.items() if name for word in (name, value))]


def slips(motley, base):
    """What is given, and what the error has to say."""
    for verb, given in base.items():
        for option in options_of(motley, verb):
            wrong = {**given, option: WRONG}
            if option == "--resume":  # keeps its folder, model and data
                wrong = {"": ["--agents"], option: WRONG}
            if option == "--link-file":
                wrong[""] = []
            if option == "--from":
                wrong = {"": ["--agents"], "--resume": WRONG, option: WRONG}
            yield words_of(verb, wrong), (option, WRONG)
    up = base["up"]
    for more in (["--set", "motley.batch=much"], ["--cost", "nonsense"], ["--standby-weights", "nonsense"], ["--without", "missing/7"]):
        yield words_of("up", up) + more, more[1:]
    yield words_of("up", up) + ["--max-kl", "0.1", "--weight-type", "q4_k"], ("--max-kl",)
    yield words_of("up", {**up, "--memory": "100 TiB"}), ("--memory",)
    yield words_of("up", {**up, "--devices": "77"}), ("--devices 77 names no GPU",)
    yield words_of("up", {**up, "--devices": "0,,1"}), ("--devices 0,,1 does not name GPUs",)
    yield words_of("up", up) + ["--model", TALES], ("single model",)
    yield words_of("up", up) + ["--token-lifetime", "0 s"], ("--token-lifetime",)
    yield words_of("join", {**base["join"], "": ["motley://cut-off"]}), ("link",)


def test_every_option_with_a_wrong_value_ends_the_start(motley, base, environment):
    def outcome(slip):
        words, said = slip
        command = [str(motley), *map(str, words)]
        # The error is awaited until no process is left that could write one.
        result = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S)
        known = any(text in result.stderr for text in said)
        return None if result.returncode in (2, 3) and "error: " in result.stderr and known else (words, result.returncode, result.stderr)

    all_slips = list(slips(motley, base))
    assert len(all_slips) > 60
    with ThreadPoolExecutor(4) as threads:
        wrong = [found for found in threads.map(outcome, all_slips) if found]
    assert wrong == []
    assert not (base["train"]["--output"] / "metrics.jsonl").exists()


def large_model(folder):
    """The tales model and a tensor that takes minutes to be read, and no room on disk."""
    shutil.copytree(TALES, folder)
    file = folder / "model.safetensors"
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    end, more = len(content) - 8 - size, 1 << 38
    header["filler"] = {"dtype": "U8", "shape": [more], "data_offsets": [end, end + more]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])
    os.truncate(file, 8 + len(text) + end + more)
    return folder


def signalled(motley, environment, words, is_time):
    """What `up` has said on stderr when it ends by a signal that is sent once a line of its output is_time."""
    command = [str(motley), *map(str, words)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as up:
        try:
            said = next(line for line in up.stdout if is_time(line))
            up.send_signal(signal.SIGINT)
            said += up.communicate(timeout=TIMEOUT_S)[0]
        finally:
            up.kill()
    assert up.returncode == 130, said
    return said


def test_a_signal_ends_the_digests_of_a_model(motley, base, environment, tmp_path):
    """They are made after the link is printed, and take minutes."""
    words = words_of("up", {**base["up"], "--model": large_model(tmp_path / "model")})
    assert "waiting" not in signalled(motley, environment, words, lambda line: line.startswith("motley join "))


def test_a_signal_ends_the_search_for_a_plan(motley, base, environment):
    words = words_of("up", {**base["up"], "--memory": "1 GiB", "--processor-parts": 64, "--deadline": "10 min"})
    assert "planned" not in signalled(motley, environment, words, lambda line: line.startswith("planning "))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become a user that has no home folder")
def test_without_a_home_folder_nothing_is_kept_where_others_can_write(motley):
    environment = {name: value for name, value in os.environ.items() if name != "HOME" and not name.startswith("XDG_")}
    # Of root's rights it keeps the one to pass folders: the program may lie in root's own.
    unknown_user = ["setpriv", "--reuid", "54321", "--inh-caps", "+dac_override", "--ambient-caps", "+dac_override"]
    result = subprocess.run([*unknown_user, motley, "join", LINK], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert result.returncode == 3, result.stderr
    assert "no home folder" in result.stderr and "set HOME, or XDG_CACHE_HOME" in result.stderr
