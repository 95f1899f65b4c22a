"""`cmake --install` into an empty prefix, which is then moved; what runs from it runs while the whole checkout is hidden."""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("MOTLEY_BUILD", ROOT / "build" / "release"))
EXAMPLE = ROOT / "examples/collectives"
GARAGE = "share/motley/examples/garage"
TORCH = Path("lib/python3.11/site-packages/torch")

# Runs its arguments where the checkout is an empty folder, and the build's Python environment stands at another place.
HIDE = """
mount --bind "$1" "$2" && mount -t tmpfs tmpfs "$3" && cd / && shift 3 && exec "$@"
"""


def built_with():
    """The Python environment, as it was configured."""
    return Path(re.search(r"^MOTLEY_VENV:PATH=(.*)$", (BUILD / "CMakeCache.txt").read_text(), re.MULTILINE)[1])


def run(command, code=0, **environment):
    """Without the variables of this test run that name folders of the build."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MOTLEY_")} | environment
    result = subprocess.run([*map(str, command)], env=clean, capture_output=True, text=True, timeout=300)
    assert result.returncode == code, f"{result.returncode}: {command}\n{result.stdout}{result.stderr}"
    return result


@pytest.fixture(scope="module")
def prefix(motley, tmp_path_factory):
    folder = tmp_path_factory.mktemp("install")
    run(["cmake", "--install", BUILD, "--prefix", folder / "first"])
    return (folder / "first").rename(folder / "moved prefix")


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Where the hidden programs find the build's environment."""
    return tmp_path_factory.mktemp("environment")


@pytest.fixture(scope="module")
def hidden(environment):
    """The words before a command that hide the checkout from it."""
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    words = [*unshare, "sh", "-c", HIDE, "hide", built_with().resolve(), environment, ROOT]
    attempt = subprocess.run([*words, "ls", "-A", ROOT, environment / "bin/python3"], capture_output=True, text=True)
    if attempt.returncode != 0:
        pytest.skip(f"hiding the checkout needs mount namespaces, of root or of users: {attempt.stderr.strip()}")
    assert attempt.stdout.split() == [str(environment / "bin/python3"), f"{ROOT}:"]
    return words


def doctor(command, code=0, **environment):
    findings = json.loads(run([*command, "doctor", "--json"], code, **environment).stdout)["findings"]
    return {finding["what"]: finding for finding in findings}


# ---- the files ----


def test_no_file_leads_back_to_the_checkout(prefix):
    libtorch = str(built_with() / TORCH / "lib")
    searched = {}
    for file in filter(Path.is_file, prefix.rglob("*")):
        content = file.read_bytes()
        if content.startswith(b"\x7fELF"):
            dynamic = run(["readelf", "-d", file]).stdout
            searched[file.name] = [path for paths in re.findall(r"R(?:UN)?PATH.*\[(.*)\]", dynamic) for path in paths.split(":")]
        else:
            assert str(ROOT).encode() not in content, file
    assert searched["motley"] == ["$ORIGIN/../lib/motley"] and searched["motley-worker"] == [libtorch]
    assert all(path.startswith("$ORIGIN") or path == libtorch for paths in searched.values() for path in paths), searched
    versions = {file.name for file in (prefix / "lib").glob("libmotley_comm.so*")}
    abi = re.search(r"MOTLEY_COMM_ABI (\d+)", (prefix / "include/motley/comm/c_api.h").read_text())[1]
    assert versions == {"libmotley_comm.so", f"libmotley_comm.so.{abi}"}
    assert (prefix / "lib/libmotley_comm.so").readlink() == Path(f"libmotley_comm.so.{abi}")


def test_the_collectives_can_be_installed_alone(motley, tmp_path):
    run(["cmake", "--install", BUILD, "--prefix", tmp_path, "--component", "collectives"])
    files = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if not file.is_dir()}
    assert {"lib/libmotley_comm.so", "include/motley/comm/c_api.h", "lib/pkgconfig/motley-comm.pc"} <= files
    assert not any(file.startswith(("bin/", "lib/motley/")) or "models" in file for file in files), files


# ---- the programs ----


def test_without_a_name_the_environment_of_the_build_is_used(prefix):
    found = doctor([prefix / "bin/motley"])
    assert found["environment"]["state"] == "ok" and found["environment"]["detail"].startswith(f"{built_with()}; LibTorch")


def test_doctor_finds_everything_in_the_prefix(prefix, hidden, environment):
    found = doctor([*hidden, prefix / "bin/motley"], MOTLEY_VENV=str(environment))
    assert [found[what]["state"] for what in ("data", "worker", "environment")] == ["ok"] * 3
    assert found["data"]["detail"].startswith(f"{prefix / 'share/motley'}; ")
    assert found["worker"]["detail"] == str(prefix / "bin/motley-worker")
    assert found["environment"]["detail"].startswith(f"{environment}; LibTorch")


def test_plans_need_no_environment(prefix, hidden, tmp_path):
    """The integer programs of a fleet to rent are solved by HiGHS, which is in the prefix."""
    motley, examples = [*hidden, prefix / "bin/motley"], prefix / "share/motley/examples"
    plan = tmp_path / "fleet.json"
    run([*motley, "plan", "rent", "--offers", examples / "renting/measured.json", "--budget", "30 $/h", "-q", "-o", plan])
    assert json.loads(plan.read_text())["kind"] == "rent"
    run([*motley, "plan", "allreduce", "--cluster", examples / "collectives/star.toml", "--bytes", "1 MB", "-q", "-o", plan])
    run([*motley, "verify", plan])


@pytest.fixture
def garage(prefix, hidden, tmp_path):
    plan = tmp_path / "plan.json"
    folder = prefix / GARAGE
    run([*hidden, prefix / "bin/motley", "plan", "serve", "--cluster", folder / "cluster.toml", "--workload", folder / "workload.toml",
         "--model", "tales", "-q", "-o", plan])  # fmt: skip
    return plan


def test_a_request_is_answered(prefix, hidden, environment, garage, tmp_path, start_server):
    program = tmp_path / "motley"
    words = ["env", f"MOTLEY_VENV={environment}", *hidden, prefix / "bin/motley"]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, words))} "$@"\n')
    program.chmod(0o755)
    server = start_server(garage, "--model", prefix / "share/motley/models/tales", program=program)
    body = {"model": "tales", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    request = urllib.request.Request(f"{server.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        completion = json.loads(answer.read())
    assert completion["usage"]["completion_tokens"] == 8 and completion["choices"][0]["text"].strip()
    assert server.stop() == 0


def serve(hidden, prefix, plan, **environment):
    """The error of a server that cannot start."""
    words = [*hidden, prefix / "bin/motley", "serve", plan, "--model", prefix / "share/motley/models/tales", "--local", "--port", "0"]
    return run(words, code=3, **environment).stderr


def test_an_environment_that_lacks_something_is_named_with_what_it_lacks(prefix, hidden, environment, garage, tmp_path):
    chosen = tmp_path / "chosen"
    folder = chosen / TORCH
    (folder / "lib").mkdir(parents=True)
    variable = {"MOTLEY_VENV": str(chosen)}

    error = serve(hidden, prefix, garage, **variable)
    assert f"{chosen} lacks LibTorch: {folder / 'lib/libtorch_cpu.so'} is missing" in error and "hint: " in error and "in MOTLEY_VENV" in error
    found = doctor([*hidden, prefix / "bin/motley"], code=3, **variable)["environment"]
    assert found["state"] == "missing" and "lacks LibTorch" in found["detail"]
    # The one of the build is hidden.
    assert f"{built_with()} lacks LibTorch" in serve(hidden, prefix, garage)

    (folder / "lib/libtorch_cpu.so").touch()
    (folder / "version.py").write_text("__version__ = '1.0.0+cpu'\n")
    assert "has LibTorch 1.0.0, and motley-worker needs 2." in serve(hidden, prefix, garage, **variable)

    shutil.rmtree(folder)
    folder.symlink_to(environment / TORCH)
    found = doctor([*hidden, prefix / "bin/motley"], code=3, **variable)["environment"]
    assert found["detail"] == f"{chosen} lacks tokenizers"


# ---- the collectives ----


def built_with_cmake(prefix, hidden, source, folder):
    run([*hidden, "cmake", "-S", source, "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Release"])
    run([*hidden, "cmake", "--build", folder])
    return folder / "average"


def built_with_pkg_config(prefix, hidden, source, folder):
    wanted = ["pkg-config", "--cflags", "--libs", "motley-comm"]
    flags = shlex.split(run([*hidden, *wanted], PKG_CONFIG_PATH=str(prefix / "lib/pkgconfig")).stdout)
    folder.mkdir()
    run([*hidden, "g++", "-std=c++20", source / "average.cpp", *flags, f"-Wl,-rpath,{prefix / 'lib'}", "-o", folder / "average"])
    return folder / "average"


@pytest.mark.parametrize("build", [built_with_cmake, built_with_pkg_config])
def test_the_example_is_built_with_the_prefix_alone(prefix, hidden, tmp_path, build):
    program = build(prefix, hidden, prefix / "share/motley/examples/collectives", tmp_path / "build")
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    addresses = ",".join(f"127.0.0.1:{one.getsockname()[1]}" for one in sockets)
    for one in sockets:
        one.close()
    commands = [[*map(str, hidden), program, str(rank), addresses] for rank in range(3)]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for command in commands]
    outputs = [rank.communicate(timeout=60) for rank in ranks]
    shown = re.findall(r"^    (step \d: .*)$", (EXAMPLE / "README.md").read_text(), re.MULTILINE)
    assert len(shown) == 3 and outputs[0][0].splitlines() == shown, outputs
    assert [rank.returncode for rank in ranks] == [0, 0, 0], outputs


def test_the_header_is_c(prefix):
    run(["gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c", prefix / "include/motley/comm/c_api.h"])


def test_the_python_package_opens_the_library_of_its_prefix(prefix, hidden):
    program = "from motley.comm import Fabric, _library_path; print(_library_path(), Fabric().address)"
    path, address = run([*hidden, "/usr/bin/python3", "-B", "-c", program],
                        PYTHONPATH=str(prefix / "lib/python3/site-packages")).stdout.rsplit(maxsplit=1)  # fmt: skip
    assert path == str(prefix / "lib/libmotley_comm.so") and address.startswith("127.0.0.1:")
