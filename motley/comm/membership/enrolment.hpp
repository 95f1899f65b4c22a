// How a joiner that has no more than the group's token comes by a certificate: it makes a key pair, and asks a
// coordinator that holds the authority to certify it. The private key never travels.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "motley/comm/authority/authority.hpp"
#include "motley/comm/membership/membership_messages.hpp"

namespace motley {

struct EnrolmentOptions {
  std::string group = "group";
  std::string token = {};
  // The only one that is believed: its certificate in PEM, or its fingerprint, "sha256:...".
  std::string authority = {};
  std::string member = {};  // the id that the certificate will name
  std::string key = {};     // that is certified, in PEM; empty: a new one each time
};

struct Enrolment {
  TlsIdentity identity;
  double valid_s = 0;  // from now on
  std::string key;     // what members show one another
};

// A request under way.
class EnrolmentRequest {
 public:
  // Makes the key pair, where there is none. Throws an input error where a name, the authority or the key is none.
  explicit EnrolmentRequest(const EnrolmentOptions& options);

  CertificateRequest message() const;
  // Throws a peer error where the grant is not what was asked for, or comes from another authority.
  Enrolment accept(const CertificateGrant& grant) const;
  // Of the authority that is believed.
  const std::string& pin() const { return pin_; }

 private:
  EnrolmentOptions options_;
  std::string pin_;
  CertificateApplication application_;
};

// Asks the coordinator at `address`, over a connection of its own, and waits until `patience_s`. The coordinator must
// show a certificate of the authority that names coordinator_name. An identity that is shown counts like a token
// (CoordinatorServerOptions::admission). Throws an input error where it refuses for good, and a peer error with the
// cause where it refuses for now, does not answer, or is another's.
Enrolment enrol(const std::string& address, const EnrolmentOptions& options, double patience_s,
                const std::optional<TlsIdentity>& shown = {});

// The identity of a process that is not a member of an elastic group, from the coordinators that are tried in turn. A
// thread renews it when it is half over.
class EnrolledIdentity {
 public:
  // Waits for the first certificate. Throws the last error where no coordinator gives one, an input error where there
  // is none to ask.
  //
  // `earlier`: what a process before this one was given; while it is valid no token is needed. `on_given` is called
  // with everything that is given, also from the thread.
  EnrolledIdentity(std::vector<std::string> coordinators, EnrolmentOptions options, double patience_s,
                   const std::optional<Enrolment>& earlier = {}, std::function<void(const Enrolment&)> on_given = {});

  const TlsContext& context() const { return context_; }
  TlsIdentity identity() const;  // for a process that this one starts
  const std::string& key() const { return key_; }

 private:
  double renew();  // returns its validity, in seconds
  void keep(const std::stop_token& stop, double valid_s);

  std::vector<std::string> coordinators_;
  EnrolmentOptions options_;
  double patience_s_;
  std::function<void(const Enrolment&)> on_given_;
  std::string key_;
  TlsContext context_;
  mutable std::mutex mutex_;
  TlsIdentity identity_;  // guarded
  std::jthread thread_;   // ends before what it uses
};

}  // namespace motley
