"""docs/adding-a-family.md is true: its family is built into motley's models as the page says, and a model of it is read."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

BUILD = Path(os.environ.get("MOTLEY_BUILD", ROOT / "build/release"))
FAMILIES = "motley/model/families"
CONFIG = {"model_type": "sometimes", "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
          "intermediate_size": 40, "expert_size": 8, "experts": 3, "experts_per_token": 2, "vocab_size": 50}
MAIN = """
#include <iostream>
#include "motley/model/families/families.hpp"
#include "motley/model/model.hpp"
int main(int, char** arguments) try {
  const motley::Model model = motley::read_model(arguments[1]);
  for (const motley::TensorSpec& tensor : part_tensors(model.arch, whole_model(model.arch)))
    std::cout << tensor.name << " " << tensor.elements() << "\\n";
  std::cout << "total " << total_parameters(model.arch) << "\\nactive " << active_parameters(model.arch) << "\\n";
  for (const motley::PreTokenizer& rule : motley::pre_tokenizers())
    if (rule.names == "sometimes-bpe") std::cout << rule.names << " " << rule.patterns.front() << "\\n";
} catch (const motley::Error& error) {
  std::cout << error.what() << "\\n";
}
"""


def follow_the_page(tree):
    page = (ROOT / "docs/adding-a-family.md").read_text()
    file, declaration, entry = re.findall(r"```cpp\n(.*?)```", page, re.DOTALL)
    (name,) = re.findall(r"`families/(\w+\.cpp)`:", page)
    shutil.copytree(ROOT / "motley/model", tree / "motley/model", ignore=shutil.ignore_patterns("*_test.*"))
    (tree / FAMILIES / name).write_text(file)
    header, table = tree / FAMILIES / "families.hpp", tree / FAMILIES / "families.cpp"
    header.write_text(header.read_text().replace("extern const Family ", declaration + "extern const Family ", 1))
    table.write_text(table.read_text().replace("static const std::array table = {", "static const std::array table = {" + entry.strip(), 1))


def build(tree):
    sources = sorted((tree / "motley/model").rglob("*.cpp"))
    # Its data are not part of what is tested, and nothing here asks for them.
    included = [f'#include "{path}"\n' for path in sources if path.name != "type_quality.cpp"]
    (tree / "main.cpp").write_text("".join(included) + MAIN)
    rule = re.search(r"^build model_test:.*?\n\n", (BUILD / "build.ninja").read_text(), re.DOTALL | re.MULTILINE).group()
    libraries = re.search(r"LINK_LIBRARIES = (.*)", rule).group(1).split()
    needed = [library for library in libraries if "motley_model" not in library and "rapidcheck" not in library and "gtest" not in library]
    compiler = os.environ.get("CXX", "g++")
    subprocess.run([compiler, "-std=c++20", "-O0", "-DFMT_SHARED", f"-I{tree}", f"-I{ROOT}", tree / "main.cpp", "-o", tree / "read",
                    *needed], cwd=BUILD, check=True)


def test_a_family_is_one_file_and_two_lines(tmp_path):
    follow_the_page(tmp_path)
    build(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    told = dict(line.rsplit(" ", 1) for line in
                subprocess.run([tmp_path / "read", tmp_path / "config.json"], capture_output=True, text=True, check=True).stdout.splitlines())
    dense, one = 3 * 40 * 16, 3 * 8 * 16
    attention, norms, router = 16 * (16 + 8 + 8 + 16), 2 * 16, 3 * 16
    blocks = 3 * (attention + norms) + 2 * dense + router
    assert int(told["total"]) == blocks + 3 * one + 2 * 50 * 16 + 16
    assert int(told["active"]) == int(told["total"]) - one
    assert told["model.layers.1.mlp.experts.2.down.weight"] == str(16 * 8)
    assert told["model.layers.1.mlp.gate.weight"] == str(router)
    assert told["sometimes-bpe"] == r"[a-z]+|\p{N}{1,2}|\s+"
    assert "model.layers.0.mlp.gate_proj.weight" in told and "model.layers.1.mlp.gate_proj.weight" not in told

    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"experts_per_token": 4}))
    refused = subprocess.run([tmp_path / "read", tmp_path / "config.json"], capture_output=True, text=True, check=True).stdout
    assert "experts_per_token: 4 is out of range" in refused
