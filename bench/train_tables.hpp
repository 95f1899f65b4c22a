// Tables of training plans against published ones, for several benchmarks.
#pragma once

namespace motley {

// DT-FM's 64-GPU networks, 8 stages x 8 replicas, its constants; and three uneven placements over the same regions:
// the published cost, and the search's with its bound and time, also from random starts.
void print_grids();

// FlashFlex's heterogeneous settings. The utilisation is in its unit: FLOPs with recomputation over the sum of peaks of
// all devices.
void print_layouts();

// Galvatron's shipped plan of Llama-2-7B on 8 GPUs, and what the same profile makes possible.
void print_homogeneous();

// One pool of unlike devices at two sites: the joint plan against each published view applied alone, all priced event
// by event in motley's own form; at most `seconds` for each.
void print_views(double seconds);

// 64, 256 and 1,024 devices of eight types.
void print_growth(double seconds);

}  // namespace motley
