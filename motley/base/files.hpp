// Files that are whole on this machine's disk, whenever it loses power.
#pragma once

#include <filesystem>
#include <string_view>

namespace motley {

enum class Readers { all, owner };  // who may read a file; `all` as the process's umask has it

// Replaces a file, or makes it. Where this throws, and after a loss of power at any moment, the file holds what it held
// before or all of `content`; once it has returned, the disk has `content`.
void replace_file(const std::filesystem::path& path, std::string_view content, Readers readers = Readers::all);

// Returns when the disk has this file's content, or the names in this folder. What stands for data (a mark, a name that
// says "whole", a list of what is there) is written after the data was synced.
void sync_to_disk(const std::filesystem::path& path);
// The folder of a file that was made, renamed or removed.
void sync_folder_of(const std::filesystem::path& path);

}  // namespace motley
