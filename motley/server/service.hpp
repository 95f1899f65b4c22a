// What the HTTP paths answer: joins the driver, the text codec and OpenAI's formats. All of its state lives on one
// thread, which decodes and answers; a second one prepares prompts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "motley/plan/serve_plan.hpp"
#include "motley/server/http.hpp"
#include "motley/serving/served_deployment.hpp"
#include "motley/text/text_codec.hpp"

namespace motley {

struct ServiceOptions {
  std::string api_key = {};            // empty: none is asked for
  std::string operator_key = {};       // also for what changes the deployment; empty: no client may
  JoinedMachines* machines = nullptr;  // behind POST /drain and POST /link; null: no machine can join
  bool share_prefixes = false;         // who has another key finds the prefixes of a request, too
  bool split_reasoning = true;         // of chats; false: thinking stands in their content
};

class Service {
 public:
  // `codec` may be null: then prompts must be token ids, and answers are.
  Service(ServePlan plan, std::shared_ptr<TextCodec> codec, ServiceOptions options);
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // For Server; returns at once.
  void handle(HttpRequest request, std::shared_ptr<Exchange> exchange);
  // What the generator's requests brought, for DriverOptions::on_events; returns at once.
  void take(std::vector<GenerateEvent> events);

  // From now on requests are served; `generator` must stay until detach().
  void attach(Generator& generator);
  // From now on requests are refused with 503 and this reason; those under way go on.
  void refuse(std::string reason);
  // Waits for the service to have let go of the generator. What is still open gets a 503.
  void detach();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace motley
