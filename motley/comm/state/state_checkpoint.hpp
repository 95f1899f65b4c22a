// A state on disk: one file per item and `manifest.json` beside them, so that a folder can be checked, resumed from,
// and served to joiners like the state of a running member.
#pragma once

#include <filesystem>
#include <span>

#include "motley/comm/state/state_manifest.hpp"

namespace motley {

// FOLDER/manifest.json, FOLDER/0000.bin, ... The folder appears whole or not at all: it is written beside itself,
// synced, and renamed; an older one of its name is replaced. Throws an environment error that names the file (a full
// disk).
void write_checkpoint(const std::filesystem::path& folder, const StateSnapshot& snapshot);

// The files are mapped, not read: the snapshot's bytes are theirs. Throws an input error where the manifest is
// malformed or a file is missing or of another size; with CheckpointVerify::contents also where a chunk's digest is
// another.
enum class CheckpointVerify { sizes, contents };
StateSnapshot open_checkpoint(const std::filesystem::path& folder, CheckpointVerify verify);

}  // namespace motley
