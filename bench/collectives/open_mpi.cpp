// open_mpi SAMPLES ROUNDS, under mpirun: MPI_Allreduce of floats (measure.hpp).
#include <mpi.h>

#include "bench/collectives/measure.hpp"

int main(int argc, char** argv) {
  if (argc != 3) return fmt::print(stderr, "usage: open_mpi SAMPLES ROUNDS\n"), 2;
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  motley::bench::measure_all_reduce("openmpi", rank, ranks, motley::bench::parse_samples(argv[1]), std::atoi(argv[2]),
                                    [](float* values, std::size_t count) {
                                      MPI_Allreduce(MPI_IN_PLACE, values, static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                                                    MPI_COMM_WORLD);
                                    });
  MPI_Finalize();
}
