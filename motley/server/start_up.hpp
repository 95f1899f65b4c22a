// What `serve` and `generate` have in common: from their settings to a driver's and a text codec.
#pragma once

#include <memory>

#include "motley/server/serve_settings.hpp"
#include "motley/serving/driver.hpp"
#include "motley/serving/served_deployment.hpp"
#include "motley/text/text_codec.hpp"

namespace motley {

// Null where the packages are missing: token ids can be served without.
std::shared_ptr<TextCodec> open_codec(const ServeSettings& settings, std::int64_t vocabulary);

DriverOptions driver_options(const ServeSettings& settings, ServedDeployment& deployment);

}  // namespace motley
