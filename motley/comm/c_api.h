// The collectives as C functions, for other languages: libmotley_comm.so. Nothing here throws, nothing outlives its
// deadline.
//
//   char error[512];
//   motley_fabric* fabric = motley_open(&(motley_open_options){...}, error, sizeof error);
//   ... tell the others motley_address(fabric), and collect theirs into `members` ...
//   motley_group* group = motley_connect(fabric, &(motley_connect_options){...}, error, sizeof error);
//   motley_outcome outcome;
//   motley_all_reduce(group, values, bytes, MOTLEY_FP32, &(motley_call){.reduction = MOTLEY_SUM, .timeout_s = 30},
//   &outcome);
//
// A group belongs to one thread at a time; motley_revoke alone may be called from any. A fabric serves all threads, and
// stays until its groups are gone.
#ifndef MOTLEY_COMM_C_API_H
#define MOTLEY_COMM_C_API_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MOTLEY_EXPORT __attribute__((visibility("default")))

// Rises with every change that a caller could notice.
#define MOTLEY_COMM_ABI 4
MOTLEY_EXPORT int32_t motley_comm_abi(void);

enum motley_status { MOTLEY_OK, MOTLEY_ABORTED, MOTLEY_REVOKED, MOTLEY_TIMED_OUT, MOTLEY_INVALID };
enum motley_element {
  MOTLEY_FP32,
  MOTLEY_FP64,
  MOTLEY_FP16,
  MOTLEY_BF16,
  MOTLEY_INT8,
  MOTLEY_UINT8,
  MOTLEY_INT16,
  MOTLEY_INT32,
  MOTLEY_INT64
};
enum motley_reduction { MOTLEY_SUM, MOTLEY_MAX, MOTLEY_MIN, MOTLEY_MEAN };
enum motley_on_abort { MOTLEY_UNDEFINED, MOTLEY_RESTORE };  // the buffer after any end but MOTLEY_OK

typedef struct motley_fabric motley_fabric;
typedef struct motley_group motley_group;

typedef struct {
  const char* id;       // of the place in the group
  const char* host;     // members of one host share memory
  const char* address;  // "10.0.0.7:4711"
  uint64_t incarnation;
} motley_member;

typedef struct {
  const char* group;
  uint64_t epoch;
  const motley_member* members;  // in the order of ranks
  int32_t size;
  int32_t rank;
  double timeout_s;  // until all connections stand
} motley_connect_options;

typedef struct {
  int32_t reduction;  // motley_reduction; where something is reduced
  int32_t on_abort;   // motley_on_abort
  double timeout_s;
} motley_call;

typedef struct {
  int32_t status;  // motley_status
  int32_t suspect_count;
  int32_t suspects[16];  // the first of them: ranks that did not deliver
  double time_s;
  int64_t sent_bytes, received_bytes;  // with headers
  char cause[512];                     // empty where MOTLEY_OK
} motley_outcome;

// Listens for other members; port 0: any free one. `key` is the group's secret, the same for all; it may be empty. What
// leads off this machine is encrypted, and needs a certificate, unless MOTLEY_PLAIN is asked for.
// Null, and `error` in words, on failure.
enum motley_encryption { MOTLEY_OFF_LOOPBACK, MOTLEY_PLAIN };
typedef struct {
  const char* listen;  // "10.0.0.7:0"
  const char* key;
  int32_t encryption;  // motley_encryption
  // PEM: the member's certificate, its key, and the authority of all members' certificates. Without certificate and
  // key, where `coordinators` are given (comma between), one of these is asked for a certificate that names `id`, for
  // the token of `group`; the authority may then be its fingerprint, "sha256:...".
  const char *certificate, *private_key, *authority;
  const char *coordinators, *group, *token, *id;
} motley_open_options;
MOTLEY_EXPORT motley_fabric* motley_open(const motley_open_options* options, char* error, size_t error_bytes);
MOTLEY_EXPORT const char* motley_address(const motley_fabric* fabric);
MOTLEY_EXPORT void motley_close(motley_fabric* fabric);
// The common name in a certificate (PEM): the id under which other members expect it. 0 on failure.
MOTLEY_EXPORT int32_t motley_certificate_name(const char* certificate, char* name, size_t name_bytes);

// All members of the epoch must do the same. Null, and `error` in words, on failure.
MOTLEY_EXPORT motley_group* motley_connect(motley_fabric* fabric, const motley_connect_options* options, char* error,
                                           size_t error_bytes);
// Collective plans (files of `motley plan allreduce -o`) in place of the library's own programs: of those for an
// operation the one made for the nearest size. All members must use the same. MOTLEY_OK; or MOTLEY_INVALID, and `error`
// in words.
MOTLEY_EXPORT int32_t motley_use_plans(motley_group* group, const char* const* files, int32_t count, char* error,
                                       size_t error_bytes);
MOTLEY_EXPORT void motley_disconnect(motley_group* group);
// From any thread: running and later operations end as revoked, here and everywhere.
MOTLEY_EXPORT void motley_revoke(motley_group* group, const char* cause);

// In place, as in communicator.hpp; sizes in bytes.
MOTLEY_EXPORT void motley_all_reduce(motley_group* group, void* data, int64_t bytes, int32_t element,
                                     const motley_call* call, motley_outcome* outcome);
// `bytes` of all blocks, which are equal; this rank's stands in its place.
MOTLEY_EXPORT void motley_reduce_scatter(motley_group* group, void* data, int64_t bytes, int32_t element,
                                         const motley_call* call, motley_outcome* outcome);
MOTLEY_EXPORT void motley_all_gather(motley_group* group, void* data, int64_t bytes, const motley_call* call,
                                     motley_outcome* outcome);
MOTLEY_EXPORT void motley_broadcast(motley_group* group, void* data, int64_t bytes, int32_t root,
                                    const motley_call* call, motley_outcome* outcome);
MOTLEY_EXPORT void motley_reduce(motley_group* group, void* data, int64_t bytes, int32_t element, int32_t root,
                                 const motley_call* call, motley_outcome* outcome);
// Bytes of the blocks by rank; blocks lie one after the other.
MOTLEY_EXPORT void motley_all_to_all(motley_group* group, const void* in, const int64_t* in_bytes, void* out,
                                     const int64_t* out_bytes, const motley_call* call, motley_outcome* outcome);
MOTLEY_EXPORT void motley_send(motley_group* group, const void* data, int64_t bytes, int32_t peer,
                               const motley_call* call, motley_outcome* outcome);
MOTLEY_EXPORT void motley_recv(motley_group* group, void* data, int64_t bytes, int32_t peer, const motley_call* call,
                               motley_outcome* outcome);
MOTLEY_EXPORT void motley_barrier(motley_group* group, const motley_call* call, motley_outcome* outcome);

// ---- groups whose members come and go (session.hpp) ----

typedef struct motley_coordinator motley_coordinator;
typedef struct motley_session motley_session;

typedef struct {
  const char* group;
  const char* listen;    // "127.0.0.1:0"
  const char* token;     // who has another is turned away
  const char* log_file;  // a restarted coordinator goes on from it
  uint32_t minimum_size;
  // Made by `motley group create`: group, token, TLS, and certificates for who shows the token. Null: as above, no TLS.
  const char* folder;
} motley_coordinator_options;

// Serves in a thread of its own until it is stopped. Null, and `error` in words, on failure.
MOTLEY_EXPORT motley_coordinator* motley_coordinate(const motley_coordinator_options* options, char* error,
                                                    size_t error_bytes);
MOTLEY_EXPORT const char* motley_coordinator_address(const motley_coordinator* coordinator);
MOTLEY_EXPORT void motley_stop_coordinator(motley_coordinator* coordinator);

// The state of this process, as one run of bytes; called in motley_run_step only.
typedef struct {
  void* user;  // handed to each
  // Where it lies, and its size; it stays there until the next call of one of these. Null: it cannot be given.
  const void* (*save)(void* user, int64_t* bytes);
  void* (*place)(void* user, int64_t bytes);  // room for what is coming; null: there is none
  int32_t (*load)(void* user);                // it has come; 0: it is good
} motley_state;

// The state of this process in items, of which a joiner is given some at the beginning of every step
// (state_slices.hpp). The program promises that a step changes an item depending on this item and on the step's reduced
// results alone. Called in motley_run_step and motley_leave only; as motley_state, for the item with this number.
typedef struct {
  void* user;
  int32_t count;  // the same in all members
  const void* (*save)(void* user, int32_t item, int64_t* bytes);
  void* (*place)(void* user, int32_t item, int64_t bytes);
  int32_t (*load)(void* user, int32_t item);
  double share;  // of the steps' time, for a joiner's items; 0: 0.08
} motley_items;

typedef struct {
  const char* coordinators;  // addresses, comma between
  const char* group;
  const char* token;
  const char* id;                             // of this process's place; null: the library draws one
  const char* listen;                         // for other members, "127.0.0.1:0"
  const motley_state* state;                  // null: steps need none
  double give_bytes_per_s, take_bytes_per_s;  // caps while state is pulled; 0: none
  // As in motley_open_options; with an authority alone, the coordinators are asked for a certificate.
  const char *certificate, *private_key, *authority;
  const motley_items* items;  // in place of `state`
} motley_session_options;

MOTLEY_EXPORT motley_session* motley_open_session(const motley_session_options* options, char* error,
                                                  size_t error_bytes);
MOTLEY_EXPORT void motley_close_session(motley_session* session);

typedef struct {
  motley_group* group;  // of the step's epoch; lasts until the body returns
  uint64_t step;        // that is tried
  uint64_t epoch;
  int32_t rank, size;
  // Whose part counts: members that are learning the state (motley_items) add nothing, and apply the step's result to
  // the first `items` items of it alone.
  int32_t contributors;
  int32_t place;  // among them; negative: this process does not contribute
  int32_t items;  // that this process has
} motley_step;

// How it went: the first of its operations that did not end as MOTLEY_OK, or one that did.
typedef void (*motley_step_body)(void* user, const motley_step* step, motley_outcome* outcome);

enum motley_session_status {
  MOTLEY_COMMITTED,       // by all members of the epoch
  MOTLEY_STEP_TIMED_OUT,  // nothing was committed
  MOTLEY_UNDECIDED,       // run again: it will turn out
  MOTLEY_STEP_STOPPED,
  MOTLEY_STEP_INVALID
};

typedef struct {
  int32_t status;  // motley_session_status
  int32_t members, attempts;
  uint64_t step, epoch;
  char cause[512];  // empty where MOTLEY_COMMITTED
} motley_session_outcome;

// The group's next step: `body` is called until it is committed, in as many epochs as that takes.
MOTLEY_EXPORT void motley_run_step(motley_session* session, motley_step_body body, void* user, double timeout_s,
                                   motley_session_outcome* outcome);
// Waits until the others can go on without this process; 1 where they do.
MOTLEY_EXPORT int32_t motley_leave(motley_session* session, double timeout_s);

#ifdef __cplusplus
}
#endif

#endif
