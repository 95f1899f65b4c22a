#!/usr/bin/env bash
# Packs what was built into FOLDER, so that run.py there checks it on a machine that has a GPU and PyTorch, and nothing else.
#
#   pack.sh BUILD FOLDER REFERENCE_PYTHON [KERNELS] [LLAMA_CPP]      what `./dev gpu --build` makes: the library, and a folder, which is
#                                                                    packed alone: it is large, and not there where it was not built
set -euo pipefail
build=$1 folder=$2 python=$3 kernels=${4:-} llama_cpp=${5:-}
here=$(dirname "${BASH_SOURCE[0]}")

rm -rf "$folder"
mkdir -p "$folder/bin" "$folder/lib" "$folder/models"
programs=(motley motley-worker engine_check decode_bench nccl_check sums_check copies_check)
for program in "${programs[@]}"; do
  strip -o "$folder/bin/$program" "$build/$program"
done
[ -z "$kernels" ] || cp "$kernels" "$folder/bin/"
ip=$(command -v ip)  # which few images have: machines are namespaces
cp "$ip" "$folder/bin/"
# What the programs link apart from LibTorch's and the C++ libraries, which every machine with PyTorch has.
ldd "${programs[@]/#/$build/}" "$ip" /usr/bin/python3.11 | awk '/=>/ {print $3}' | sort -u |
  grep -vE '/(torch|nvidia)/|/lib(c|m|dl|rt|util|pthread|gcc_s|stdc\+\+)\.so' | xargs -I{} cp -L {} "$folder/lib/"
for standin in libmotley_host_kernels.so libapart_device.so; do  # for the backend cpu
  strip -o "$folder/lib/$standin" "$build/$standin"
done
# The interpreter that works on texts, and what it imports: Debian's library of modules without tests and tools.
packages=$(dirname "$(ldd "$build/motley-worker" | awk '/libtorch_cpu/ {print $3}')")/../..
python_folder=$folder/python/lib/python3.11
mkdir -p "$folder/python/bin" "$python_folder/site-packages"
tar -C /usr/lib/python3.11 -c --exclude=__pycache__ --exclude='test*' --exclude='idlelib' --exclude=tkinter --exclude=lib2to3 \
  --exclude='config-*' --exclude=ensurepip --exclude=pydoc_data --exclude=distutils --exclude=sitecustomize.py . |
  tar -C "$python_folder" -x
cp -r "$packages"/{tokenizers,jinja2,markupsafe} "$python_folder/site-packages/"
ln -s site-packages "$python_folder/dist-packages"  # where Debian's interpreter looks, outside of virtual environments
find "$folder/python" -name __pycache__ -prune -exec rm -r {} +
cp /usr/bin/python3.11 "$folder/python/bin/python3"
mkdir -p "$folder/share/motley/models"
cp -r "$here/../../data/models/." "$folder/share/motley/models/"
cp "$here"/*.py "$here/../decode/make_model.py" "$folder/"
mkdir "$folder/machines"
cp "$here"/../machines/{deployment,load,one_card}.py "$folder/machines/"
PYTHONPATH=$here/../../tests/parity:$here/../decode "$python" - "$folder/models" <<'END'
import sys
from pathlib import Path
import make_model
import models
import torch
for name in models.MODELS:
    folder = Path(sys.argv[1]) / name
    models.make(name, folder).to(torch.bfloat16).save_pretrained(folder)
    for shard in folder.glob("model-*"):  # of the fp32 weights, which took twice the room
        shard.unlink()
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
make_model.make("small256", Path(sys.argv[1]) / "small256")
END
# The programs are alike in much that lies further apart than this preset looks back.
XZ_OPT="--lzma2=preset=3,dict=64MiB -T0" tar -C "$(dirname "$folder")" -cJf "$folder.tar.xz" "$(basename "$folder")"
du -sm "$folder.tar.xz" | awk '$1 > 60 {print "error: " $2 " takes " $1 " MiB, more than 60" > "/dev/stderr"; exit 1}'
rm -f "$(dirname "$folder")/llama.cpp.tar.xz"
if [ -n "$llama_cpp" ] && [ -d "$llama_cpp" ]; then
  cp -r "$llama_cpp" "$folder/llama.cpp"
  strip "$folder/llama.cpp/"*
  XZ_OPT="-3 -T0" tar -C "$(dirname "$folder")" -cJf "$(dirname "$folder")/llama.cpp.tar.xz" "$(basename "$folder")/llama.cpp"
fi
