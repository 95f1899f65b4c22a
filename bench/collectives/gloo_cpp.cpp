// gloo_cpp RANK RANKS ADDRESS STORE_FOLDER ring|bcube|halving SAMPLES ROUNDS: Gloo's all-reduce of floats over TCP
// (measure.hpp). `halving` is the older interface, whose buffers are registered once.
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <map>
#include <memory>
#include <utility>

#include "bench/collectives/measure.hpp"

namespace {

using Halving = gloo::AllreduceHalvingDoubling<float>;

void by_options(const std::shared_ptr<gloo::Context>& context, bool ring, float* values, std::size_t count) {
  using Algorithm = gloo::AllreduceOptions::Algorithm;
  gloo::AllreduceOptions options(context);
  options.setOutput(values, count);
  options.setAlgorithm(ring ? Algorithm::RING : Algorithm::BCUBE);
  options.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<float>));
  gloo::allreduce(options);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) return fmt::print(stderr, "usage: gloo_cpp RANK RANKS ADDRESS STORE ALGORITHM SAMPLES ROUNDS\n"), 2;
  const int rank = std::atoi(argv[1]), ranks = std::atoi(argv[2]);
  const std::string algorithm = argv[5];
  gloo::transport::tcp::attr attributes;
  attributes.hostname = argv[3];
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
  gloo::rendezvous::FileStore store(argv[4]);
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  context->connectFullMesh(store, device);
  std::map<std::pair<float*, std::size_t>, std::unique_ptr<Halving>> registered;
  const auto all_reduce = [&](float* values, std::size_t count) {
    if (algorithm != "halving") return by_options(context, algorithm == "ring", values, count);
    auto& ready = registered[{values, count}];
    if (!ready) ready = std::make_unique<Halving>(context, std::vector<float*>{values}, static_cast<int>(count));
    ready->run();
  };
  motley::bench::measure_all_reduce(("gloo-" + algorithm).c_str(), rank, ranks, motley::bench::parse_samples(argv[6]),
                                    std::atoi(argv[7]), all_reduce);
  // No rank closes connections that others still use.
  std::vector<std::string> done;
  for (int each = 0; each < ranks; ++each) done.push_back(fmt::format("done{}", each));
  store.set(done[static_cast<std::size_t>(rank)], {1});
  store.wait(done);
}
