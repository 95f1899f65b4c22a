#!/usr/bin/env python3
"""llama.cpp, compiled from pinned sources (pip's source package of llama-cpp-python), to compare with: for processors by run.py and
others, and for GPUs.

    llama_cpp_build.py --cuda FOLDER --architecture 90 --out FOLDER [--cache FOLDER] [--jobs N]

puts llama-batched-bench into --out. --cuda: the folder of CUDA's toolkit, with nvcc and cuBLAS; no GPU is needed. Sources and the build
stay in the cache folder.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

LLAMA_CPP = "llama-cpp-python==0.3.36"
COMPARED = "llama-batched-bench"
# What it is compiled for, as motley's sets of kernels are.
LLAMA_CPP_OPTIONS = {"portable": [], "avx2": ["AVX", "AVX2", "FMA", "F16C", "BMI2"]}
LLAMA_CPP_OPTIONS["avx512"] = LLAMA_CPP_OPTIONS["avx2"] + ["AVX512"]
LLAMA_CPP_OPTIONS["avx512bf16"] = LLAMA_CPP_OPTIONS["avx512"] + ["AVX512_BF16"]
LLAMA_CPP_OPTIONS["avx512vnni"] = LLAMA_CPP_OPTIONS["avx512"] + ["AVX512_VNNI"]
LLAMA_CPP_OPTIONS["avx512amx"] = LLAMA_CPP_OPTIONS["avx512vnni"] + ["AVX512_BF16", "AMX_TILE", "AMX_INT8", "AMX_BF16"]


def say(text):
    print(text, file=sys.stderr, flush=True)


def output_of(*command, **options):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nfailed ({result.returncode}):\n{result.stderr[-3000:]}")
    return result.stdout


def llama_cpp_sources(cache):
    if found := next(cache.glob("llama_cpp_python-*/vendor/llama.cpp"), None):
        return found
    say("fetching llama.cpp")
    if not list(cache.glob("llama_cpp_python-*.tar.gz")):
        output_of(sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-python", LLAMA_CPP, "-d", cache)
    output_of("tar", "xzf", next(cache.glob("llama_cpp_python-*.tar.gz")), "-C", cache)
    return next(cache.glob("llama_cpp_python-*/vendor/llama.cpp"))


def llama_cpp_program(cache, target, name):
    return cache / f"llama.cpp-build-{target}/bin" / name


def build_for(cache, target, kernels, flags, programs, jobs=2):
    """Programs for these sets of instructions, where they are not there yet."""
    if all(llama_cpp_program(cache, target, name).exists() for name in programs):
        return
    sources, wanted = llama_cpp_sources(cache), LLAMA_CPP_OPTIONS[kernels]
    say(f"building llama.cpp for {target} (some minutes)")
    build = cache / f"llama.cpp-build-{target}"
    sets = [f"-DGGML_{name}={'ON' if name in wanted else 'OFF'}" for name in ["SSE42", *LLAMA_CPP_OPTIONS["avx512amx"]]]
    output_of("cmake", "-S", sources, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=OFF", *sets, *flags, "-DLLAMA_CURL=OFF",
              "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_SERVER=ON", "-DLLAMA_BUILD_EXAMPLES=OFF",
              "-DLLAMA_BUILD_TOOLS=ON", "-DLLAMA_BUILD_COMMON=ON", "-DBUILD_SHARED_LIBS=OFF", "-DGGML_RPC=ON")
    output_of("nice", "cmake", "--build", build, f"-j{jobs}", "--target", *programs)


def build_llama_cpp(cache, kernels, *programs):
    """Its programs for one of motley's sets of kernels."""
    # GCC 12 loses stores before `ldtilecfg`, of which it sees a pointer alone: llama.cpp's tiles crash.
    clang = ["-DCMAKE_C_COMPILER=clang-16", "-DCMAKE_CXX_COMPILER=clang++-16"] if kernels == "avx512amx" else []
    build_for(cache, kernels, kernels, clang, programs)


def cuda_flags(cuda, architecture):
    return ["-DGGML_CUDA=ON", f"-DCMAKE_CUDA_ARCHITECTURES={architecture}", f"-DCMAKE_CUDA_COMPILER={cuda}/bin/nvcc", f"-DCUDAToolkit_ROOT={cuda}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuda", type=Path, required=True)
    parser.add_argument("--architecture", required=True, help="of the card: 90 for compute capability 9.0")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/motley/bench")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    target = f"cuda-{options.architecture}"
    build_for(options.cache, target, "avx2", cuda_flags(options.cuda.resolve(), options.architecture), [COMPARED], options.jobs)
    options.out.mkdir(parents=True, exist_ok=True)
    shutil.copy(llama_cpp_program(options.cache, target, COMPARED), options.out)


if __name__ == "__main__":
    main()
