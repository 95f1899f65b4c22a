// A training step on devices with memory of their own gives what it gives on processors.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>

#include "motley/engine/cpu/cpu_device.hpp"
#include "motley/engine/device/apart_device_test.hpp"
#include "motley/engine/stage/random_model_test.hpp"
#include "motley/trainer/step/train_executor.hpp"

namespace motley {
namespace {

constexpr std::int64_t apart_length = 6, apart_batch = 8;

// Tied tables at both ends; heads and FFN that two ranks share.
constexpr const char* apart_training_config =
    R"({"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 53, "max_position_embeddings": 64,
        "tie_word_embeddings": true})";

class ApartTrainingTest : public ::testing::Test {
 protected:
  ApartTrainingTest() {
    at::set_num_threads(1);  // in a process that forks
    std::string pattern = (std::filesystem::temp_directory_path() / "apart-training-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    plan_.model.arch = read_architecture(parse_json(apart_training_config, "config"), "config");
    plan_.workload.training =
        Training{.sequence_length = apart_length, .global_batch = apart_batch, .precision = DType::fp32, .states = {}};
    constexpr const char* toml =
        "format = \"motley.cluster/1\"\nname = \"toys\"\n[[machine]]\nname = \"box\"\ndevices = [\"toy*4\"]\n"
        "[[device_type]]\nname = \"toy\"\nvendor = \"cpu\"\nmemory = \"64 MiB\"\nmemory_bandwidth = \"8 GB/s\"\n"
        "flops = { fp32 = \"40 GFLOP/s\" }\nreserve = \"0 B\"\n"
        "[network]\nwithin_machine = { latency = \"20 us\", bandwidth = \"2 GB/s\" }\n";
    plan_.cluster = resolve(read<ClusterDescription>(parse_toml(toml, "toys.toml"), "toys.toml"), "toys.toml");
    write_random_model(folder_, plan_.model.arch);
  }
  ~ApartTrainingTest() override { std::filesystem::remove_all(folder_); }

  // A stage for each strategy, over devices box/0, box/1, ...
  void stages(const std::vector<LayerStrategy>& strategies) {
    TrainReplica replica{.micro_batches = 2, .stages = {}};
    int device = 0;
    for (const LayerStrategy& strategy : strategies) {
      TrainStage& stage = replica.stages.emplace_back();
      stage.layers = strategy.layers;
      for (std::int64_t i = 0; i < strategy.tp * strategy.dp; ++i)
        stage.devices.push_back("box/" + std::to_string(device++));
      stage.strategies = {strategy};
    }
    plan_.replicas = {replica};
  }

  TrainStep step_of(const TrainPlace& place, std::uint64_t number) const {
    TrainStep step{.step = number,
                   .wanted = TrainStep::Wanted::update,
                   .learning_rate = 0.01,
                   .tokens = apart_batch * apart_length,
                   .sequences = apart_batch};
    for (std::int32_t i = 0; i < apart_batch * apart_length; ++i) {
      if (place.stage == 0) step.inputs.push_back((7 * i + 3 * static_cast<std::int32_t>(number)) % 53);
      if (place.stage + 1 == plan_.replicas[place.replica].stages.size()) step.targets.push_back((5 * i + 1) % 53);
    }
    return step;
  }

  // What a worker has after two steps: their losses, then the values of its parts, all as doubles.
  using Trained = std::vector<double>;

  // Processes, since autograd has one thread for all of a device's backward passes, and ranks meet inside them.
  std::vector<Trained> train_on(const std::function<const ComputeDevice&()>& compute) const {
    const std::vector<std::string> devices = train_devices(plan_);
    std::vector<int> links;
    std::vector<pid_t> workers;
    for (const std::string& device : devices) {
      std::array<int, 2> ends{};
      MOTLEY_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
      workers.push_back(::fork());
      if (workers.back() == 0) {
        for (const int link : links) ::close(link);
        ::close(ends[0]);
        work(device, compute, ends[1]);
      }
      ::close(ends[1]);
      links.push_back(ends[0]);
    }
    std::string addresses;
    for (const int link : links) addresses += read_all(link, address_bytes);
    for (const int link : links) write_all(link, addresses);
    std::vector<Trained> all;
    for (const int link : links) {
      std::uint64_t count = 0;
      const std::string head = read_all(link, sizeof count);
      std::memcpy(&count, head.data(), sizeof count);
      const std::string bytes = read_all(link, count * sizeof(double));
      all.emplace_back(count);
      std::memcpy(all.back().data(), bytes.data(), bytes.size());
    }
    for (const int link : links) ::close(link);
    for (const pid_t worker : workers) {
      int status = 0;
      ::waitpid(worker, &status, 0);
      EXPECT_EQ(status, 0);
    }
    return all;
  }

  [[noreturn]] void work(const std::string& device, const std::function<const ComputeDevice&()>& compute,
                         int link) const {
    try {
      at::set_num_threads(1);
      Fabric fabric(FabricOptions{.key = "secret", .identity = {}});
      std::string address = fabric.address();
      address.resize(address_bytes);
      write_all(link, address);
      TrainLaunch launch{.plan_json = {}, .updates = 0, .workers = {}};
      for (std::size_t i = 0; i < train_devices(plan_).size(); ++i)
        launch.workers.push_back({read_all(link, address_bytes).c_str(), "box"});
      ActivityLog activity;
      CallDriver self;
      self.device = device;
      self.model_folder = folder_.string();
      TrainExecutor executor(plan_, launch, self, compute(), fabric, {}, activity);
      Trained trained;
      for (const std::uint64_t number : {1, 2}) {
        const TrainStepDone done = executor.execute(step_of(place_of(plan_, device), number));
        MOTLEY_CHECK(done.activation_bytes > 0);
        trained.push_back(done.loss);
      }
      for (const SavedSlice& part : executor.saved_parts(TrainExecutor::Copies::all)) {
        const at::Tensor values = part.values.to(at::kDouble).flatten();
        trained.insert(trained.end(), values.const_data_ptr<double>(),
                       values.const_data_ptr<double>() + values.numel());
      }
      const std::uint64_t count = trained.size();
      write_all(link, {reinterpret_cast<const char*>(&count), sizeof count});
      write_all(link, {reinterpret_cast<const char*>(trained.data()), count * sizeof(double)});
      read_all(link, 1);  // until the other end is closed: others may still need this one
    } catch (const std::exception& error) {
      std::cerr << device << ": " << error.what() << std::endl;
      ::_exit(1);
    }
    ::_exit(0);
  }

  static void write_all(int link, std::string_view bytes) {
    while (!bytes.empty()) {
      const auto sent = ::send(link, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) throw Error(ErrorCode::peer, "the other end is gone");
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
  // As many as come before the end.
  static std::string read_all(int link, std::size_t count) {
    std::string bytes(count, '\0');
    for (std::size_t done = 0; done < count;) {
      const auto got = ::read(link, bytes.data() + done, count - done);
      if (got <= 0) break;
      done += static_cast<std::size_t>(got);
    }
    return bytes;
  }

  void expect_the_same() const {
    const std::vector<Trained> here = train_on(cpu_device), apart = train_on(apart_device);
    ASSERT_EQ(here.size(), apart.size());
    EXPECT_GT(here[0].size(), 1000u);
    for (std::size_t i = 0; i < here.size(); ++i) {
      ASSERT_EQ(apart[i].size(), here[i].size());
      EXPECT_NE(here[i][0], here[i][1]);
      double most = 0;
      for (std::size_t v = 0; v < here[i].size(); ++v) most = std::max(most, std::abs(apart[i][v] - here[i][v]));
      EXPECT_LT(most, 1e-4);
    }
  }

  static constexpr std::size_t address_bytes = 64;
  std::filesystem::path folder_;
  TrainPlan plan_;
};

TEST_F(ApartTrainingTest, OneDevice) {
  stages({{.layers = {0, 4}}});
  expect_the_same();
}

TEST_F(ApartTrainingTest, StagesAndTensorRanks) {
  stages({{.layers = {0, 1}}, {.layers = {1, 4}, .tp = 2, .recompute = true}});
  expect_the_same();
}

TEST_F(ApartTrainingTest, GradientsOfWeightsThatWait) {
  stages({{.layers = {0, 2}}, {.layers = {2, 4}}});
  plan_.schedule = PipelineSchedule::zb_h1;
  expect_the_same();
}

TEST_F(ApartTrainingTest, ShardedStates) {
  for (const Sharding shard : {Sharding::none, Sharding::zero1, Sharding::zero2, Sharding::zero3}) {
    stages({{.layers = {0, 4}, .dp = 2, .shard = shard, .split = shard == Sharding::zero3 ? 2 : 1}});
    expect_the_same();
  }
}

}  // namespace
}  // namespace motley
